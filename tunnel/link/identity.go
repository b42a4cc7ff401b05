package link

// FeatureIdentity is named in the HELLO of servers, except to their clients, and of agents:
// OPEN tells who the client is (§12).
const FeatureIdentity = "identity"

// FeatureRules is named by the same: OPEN tells the rules that the address of a name is held
// to (§12).
const FeatureRules = "rules"
