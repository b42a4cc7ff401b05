// Package status asks processes over the admin API what they do, puts into words
// what an operator should look at first, and shows it.
package status
