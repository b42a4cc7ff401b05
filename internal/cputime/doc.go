// Package cputime tells how much processor time this process has used.
package cputime
