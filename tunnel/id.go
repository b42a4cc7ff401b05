package tunnel

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// NewID returns a new id of a connection, which sidecar, server and agent log: 16 hex
// digits.
func NewID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// MaxID bounds an id that comes from elsewhere; a trace-id has 32 characters.
const MaxID = 64

// CleanID returns id if it is fit for a log line and a header: 1 to MaxID
// letters, digits and -_.; else "". Ids of peers and clients pass through it.
func CleanID(id string) string {
	if len(id) > MaxID {
		return ""
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' && c != '.' {
			return ""
		}
	}
	return id
}

// TraceParent returns the trace-id of a traceparent header (W3C Trace Context
// §3.2), 32 hex digits, or "" where the header is not valid. Versions above 00
// may have more behind it.
func TraceParent(header string) string {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(header) < length || header[2] != '-' || header[35] != '-' || header[52] != '-' || header[:2] == "ff" ||
		len(header) > length && (header[:2] == "00" || header[length] != '-') {
		return ""
	}
	version, trace, parent, flags := header[:2], header[3:35], header[36:52], header[53:length]
	if !lowerHex(version+trace+parent+flags) || zeros(trace) || zeros(parent) {
		return ""
	}
	return trace
}

func lowerHex(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

func zeros(s string) bool { return strings.Trim(s, "0") == "" }
