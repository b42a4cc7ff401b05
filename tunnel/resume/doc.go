// Package resume is the pure part of connections that outlive what carries
// them (docs/link-protocol.md): what an end keeps to send again, what it
// acknowledges, and what becomes of it as carriers come and go. There is no
// I/O, no lock and no clock in it; its callers bring them.
//
// A connection has two ends. The opener dialed it and is the one that resumes;
// the acceptor waits to be resumed. Both directions are numbered sequences: the
// byte at offset 0 comes first, and the end of a direction counts as one more
// after its last byte, as in TCP. So one number, the count of what was taken,
// says all that the other end has to know.
//
// An End owns the memory of what it keeps. Only package roam calls it.
package resume
