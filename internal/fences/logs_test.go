package fences

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// levels are the methods of a logger.
var levels = []string{"Debug", "Info", "Warn", "Error"}

// capitalized is a sentence that begins as one of prose does; TLS, SOCKS5 and
// IPv6 begin so everywhere.
var capitalized = regexp.MustCompile(`^[A-Z]([a-z]|\s)`)

// One style for all programs: whoever filters the logs of several by words need
// not know which of them begin with a capital.
func TestLogLinesBeginInLowerCase(t *testing.T) { checkSources(t, logFaults) }

// logFaults are the log lines of s that begin with a capital.
func logFaults(s source) []string {
	if s.isTestHelper() {
		return nil
	}
	var faults []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if line := logLine(call); capitalized.MatchString(line) {
				faults = append(faults, fmt.Sprintf("%s: the log line %q begins with a capital", s.at(n), line))
			}
		}
		return true
	})
	return faults
}

// logLine is how the line begins that a call logs; "" if it logs none.
func logLine(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !slices.Contains(levels, strings.TrimSuffix(method.Sel.Name, "f")) {
		return ""
	}
	first := call.Args[0]
	for {
		sum, ok := first.(*ast.BinaryExpr)
		if !ok {
			break
		}
		first = sum.X
	}
	if text, ok := first.(*ast.BasicLit); ok && text.Kind == token.STRING {
		line, _ := strconv.Unquote(text.Value)
		return line
	}
	return ""
}
