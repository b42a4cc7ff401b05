// Package certs writes a PKI for the suite into a folder: a CA, and a certificate
// for each role.
package certs
