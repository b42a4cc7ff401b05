// Package status asks processes for what they do, by the admin API, puts into words
// what an operator should look at first, and shows it.
package status
