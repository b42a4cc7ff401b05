package httpsproxy

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// hopByHop are the fields that are meant for the next hop alone, by RFC 9110
// §7.6.1 or in older clients, besides those that Connection names. net/http
// handles Transfer-Encoding and Trailer in both directions.
var hopByHop = []string{"Connection", "Keep-Alive", "Te", "Transfer-Encoding", "Upgrade", "Http2-Settings"}

// dropHopByHop removes what must not be passed on, including credentials for
// this hop (Proxy-Authorization) and everything else that starts with Proxy-.
func dropHopByHop(h http.Header) {
	dropNamed(h, h["Connection"])
	for _, name := range hopByHop {
		h.Del(name)
	}
	for name := range h {
		if len(name) > 6 && strings.EqualFold(name[:6], "Proxy-") {
			delete(h, name)
		}
	}
}

// dropNamed removes the fields that the lines of a Connection header name.
func dropNamed(h http.Header, connection []string) {
	for _, line := range connection {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
}

// upgradeOf returns the protocol that both Connection and Upgrade ask for, or
// "". It ignores cleartext HTTP/2, which needs fields that must not be
// forwarded (and which RFC 9113 §3.1 has deprecated).
func upgradeOf(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "upgrade") {
		return ""
	}
	protocol := strings.Join(h["Upgrade"], ", ")
	if httpguts.HeaderValuesContainsToken(h["Upgrade"], "h2c") {
		return ""
	}
	return protocol
}

// asksUpgrade returns the protocol that r may be upgraded to, or "".
func asksUpgrade(r *http.Request) string {
	if !r.ProtoAtLeast(1, 1) || r.ContentLength != 0 {
		return ""
	}
	return upgradeOf(r.Header)
}

// outgoing returns r as it goes to the next hop. It shares r's content and
// trailers.
func (s *Server) outgoing(r *http.Request) *http.Request {
	out := r.WithContext(r.Context())
	out.Header = r.Header.Clone()
	out.RequestURI, out.Close = "", false
	upgrade := asksUpgrade(r)
	trailers := httpguts.HeaderValuesContainsToken(r.Header["Te"], "trailers")
	dropHopByHop(out.Header)
	switch {
	case upgrade != "":
		out.Header["Connection"] = []string{"Upgrade"}
		out.Header["Upgrade"] = []string{upgrade}
	case trailers:
		// RFC 9110 §10.1.4: it is forwarded because trailers are.
		out.Header["Connection"] = []string{"TE"}
		out.Header["Te"] = []string{"trailers"}
	}
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = []string{""} // otherwise the transport would add its own
	}
	s.addVia(out.Header, r.ProtoMajor, r.ProtoMinor)
	return out
}

// addVia tells the recipient of a message who forwarded it, as RFC 9110 §7.6.3
// requires; the pseudonym reveals nothing about the host.
func (s *Server) addVia(h http.Header, major, minor int) {
	h["Via"] = append(h["Via"], fmt.Sprintf("%d.%d %s", major, minor, s.pseudonym))
}

// looped reports whether the request has passed this process before.
func (s *Server) looped(h http.Header) bool {
	return slices.ContainsFunc(h["Via"], func(line string) bool { return strings.Contains(line, " "+s.pseudonym) })
}

// cleanResponse prepares resp's header for the client.
func (s *Server) cleanResponse(resp *http.Response) {
	dropHopByHop(resp.Header)
	s.addVia(resp.Header, resp.ProtoMajor, resp.ProtoMinor)
}

// spendForward decrements Max-Forwards for the methods that RFC 9110 §7.6.2
// defines it for; false means that the request must not be forwarded.
func spendForward(r *http.Request) bool {
	limit := r.Header.Get("Max-Forwards")
	if limit == "" || (r.Method != http.MethodOptions && r.Method != http.MethodTrace) {
		return true
	}
	n, err := strconv.ParseUint(limit, 10, 31)
	if err != nil {
		return true
	}
	if n == 0 {
		return false
	}
	r.Header.Set("Max-Forwards", strconv.FormatUint(n-1, 10))
	return true
}

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
