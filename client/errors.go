package client

import "konnectivity/tunnel"

// DialError is why a destination was not reached. Reason is a sentence that a program may
// show to its users; Err, which may be nil, is for logs.
type DialError = tunnel.DialError

// Failure is what did not work. Label is a word for it, as metrics want it, and Retryable
// tells that it failed on the way and another try may get through. The destination may have
// seen a connection without bytes, if an agent or a link was lost before it had answered.
type Failure = tunnel.Failure

// The failures.
const (
	Internal    = tunnel.FailInternal    // anything without a better name
	Refused     = tunnel.FailRefused     // the destination answered that no one listens
	Timeout     = tunnel.FailTimeout     // no answer came in time
	HostUnreach = tunnel.FailHostUnreach // no route from the agent to the host
	NetUnreach  = tunnel.FailNetUnreach  // no route from the agent to the network
	NoSuchHost  = tunnel.FailNoSuchHost  // the name does not exist where the agent looks it up
	Resolve     = tunnel.FailResolve     // the name could not be looked up just now
	Denied      = tunnel.FailDenied      // a policy of the server or the agent forbids the destination
	BadAddress  = tunnel.FailBadAddress  // not host:port, or a network other than TCP
	NoAgent     = tunnel.FailNoAgent     // no agent is connected that could serve it
	AgentLost   = tunnel.FailAgentLost   // the agent went away before it answered
	Exhausted   = tunnel.FailExhausted   // a process on the way is out of file descriptors or memory
	Unavailable = tunnel.FailUnavailable // the server cannot be reached, or the Client is closed (net.ErrClosed)
	Cancelled   = tunnel.FailCancelled   // the context was cancelled
	Auth        = tunnel.FailAuth        // a proxy behind the tunnel wants authentication
	Reset       = tunnel.FailReset       // the destination reset the connection while it was set up
	Bound       = tunnel.FailBound       // a bound of this cluster is reached; later it may not be
)

// FailureOf returns the Failure in an error of DialContext, however it is wrapped; 0 for nil.
func FailureOf(err error) Failure { return tunnel.FailureOf(err) }
