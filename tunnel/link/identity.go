package link

// FeatureIdentity is named in the HELLO of servers, except to their clients, and of agents:
// OPEN tells who the client is (§12).
const FeatureIdentity = "identity"
