package legacy

import (
	"errors"
	"strings"

	"konnectivity/tunnel"
)

// Only this file recognises errors by their text: DIAL_RSP and CLOSE_RSP carry
// nothing else.

// maxText bounds the text of a peer's error.
const maxText = 512

// dialText is the text of a failed dial in DIAL_RSP: the failure's own words,
// after the reason in parentheses if there is one. parseDialText reads it back
// exactly; people and upstream's peers can read it too.
func dialText(err error) string {
	e := tunnel.AsDialError("", err)
	if e.Reason == "" || e.Reason == e.Failure.String() {
		return e.Failure.String()
	}
	return cleanText(e.Reason) + " (" + e.Failure.String() + ")"
}

// parseDialText makes an error of DIAL_RSP's text. What an old agent says is
// for logs only (Err), since it names inner addresses.
func parseDialText(address, text string) *tunnel.DialError {
	for f := range tunnel.Failures() {
		if text == f.String() {
			return &tunnel.DialError{Failure: f, Address: address}
		}
		if reason, ok := strings.CutSuffix(text, " ("+f.String()+")"); ok {
			return &tunnel.DialError{Failure: f, Address: address, Reason: cleanText(reason)}
		}
	}
	text = cleanText(text)
	return &tunnel.DialError{Failure: tunnel.GuessFailure(text), Address: address, Err: errors.New(text)}
}

// textUnknown answers packets about a connection that does not exist.
const textUnknown = "unknown connectID"

// resetCode returns the code whose text a CLOSE_RSP of our own peers has. Upstream's agents
// send a text only if they do not know the connection, which is gone then.
func resetCode(text string) tunnel.Code {
	for code := range tunnel.Codes() {
		if text == code.String() {
			return code
		}
	}
	if strings.Contains(strings.ToLower(text), "connectid") {
		return tunnel.CodePeerReset
	}
	return tunnel.CodeUnknown
}

// cleanText makes a text fit for a log line or a response: valid, on one line,
// not longer than maxText.
func cleanText(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return tunnel.OneLine(strings.ToValidUTF8(text, "?"))
}
