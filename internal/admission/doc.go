// Package admission is what every front does with connections before it serves
// them: accept them through shortages, bound how many are open without letting
// silent ones keep others out, and notice a client that leaves while it waits
// for an answer.
package admission
