// Package tenants shows the clusters that share a server to an operator, and
// checks the folder of one.
package tenants
