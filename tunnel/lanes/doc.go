// Package lanes makes several links to one peer the lanes of one
// (docs/link-protocol.md §10), so that a lost segment holds up only what is on
// its lane, and bulk does not have to share one connection's rate and core.
//
// How many lanes there should be, and where a stream goes, is decided by pure
// code (plan.go, place.go). A Group is the lanes (group.go); it looks at them while they
// carry bulk and has done what was decided (look.go), adds lanes (add.go), and opens
// streams on them (dial.go).
//
// Agents and sidecars have their Group make links (agent/link.go,
// adapters/uplink/connector.go), and the server puts those that belong together into
// one (server/lanes.go). All use it as they would a single session.
package lanes
