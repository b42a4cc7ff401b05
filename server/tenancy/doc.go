// Package tenancy is what a server that serves many clusters knows of each, a
// tenant: who may be its agents and its clients, by which server names it is
// reached, and what it may use. It reads a folder for each tenant and follows
// it while the server runs; one that is broken harms no other.
package tenancy
