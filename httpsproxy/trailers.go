package httpsproxy

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// lateForNone are fields that httpguts allows as trailers but that must not be:
// by RFC 9110 §6.5.1 whatever frames, routes, authenticates or modifies a
// message must be known before its content, and a recipient that merges
// trailers into the header would get fields that no hop has checked. Digests,
// Etag, Server-Timing and applications' own fields may come late.
var lateForNone = []string{
	"Age", "Alt-Svc", "Clear-Site-Data", "Content-Disposition", "Content-Language", "Content-Location", "Content-Security-Policy", "Cookie", "Date", "Expires",
	"Forwarded", "Konnectivity-Id", "Location", "Origin", "Refresh", "Retry-After", "Set-Cookie", "Strict-Transport-Security", "Traceparent", "Tracestate",
	"Vary", "Via", "Warning", "X-Http-Method-Override", "X-Real-Ip",
}

// cleanTrailer removes trailers that are not allowed or must not be forwarded;
// connection is the message's Connection field, which may name trailers.
func cleanTrailer(trailer http.Header, connection []string) {
	dropNamed(trailer, connection)
	dropHopByHop(trailer)
	for name := range trailer {
		if !httpguts.ValidTrailerHeader(name) || slices.Contains(lateForNone, name) || strings.HasPrefix(name, "X-Forwarded-") {
			delete(trailer, name)
		}
	}
}
