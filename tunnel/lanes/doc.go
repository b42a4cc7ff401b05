// Package lanes groups several links to one peer, its lanes, so that they count as one
// (docs/link-protocol.md §10). A lost segment then holds up only the streams of its lane,
// and bulk does not share one connection's rate and core.
//
// Pure code decides how many lanes there should be (plan.go), which lane a stream goes to
// (placement.go), and how fast lanes may send (pace.go). A Group is the lanes (group.go).
// While they carry bulk, it samples them and carries decisions out (monitor.go): it adds
// lanes (growth.go), drops and paces them, and asks streams to move. It opens streams
// (dial.go) and has the methods of a link.Session that its users need (session.go).
//
// A lane is open, draining by its peer's wish, dropped by this side's, or ended. A Group
// lasts until its last lane has ended, or until Close. The next link names one that was lost
// (lost.go), since its peer may still believe in it.
//
// The Groups of agents and sidecars make links (agent/linksession.go,
// adapters/uplink/connector.go); the server puts those that belong together into one
// (server/lanes.go).
package lanes
