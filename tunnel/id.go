package tunnel

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
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

// TraceID returns the trace-id, 32 hex digits, for the id of a connection. An id that is a
// trace-id stays as it is. One of ours has 64 bits and gets 64 zeros before it, as W3C Trace
// Context asks. Any other is hashed.
func TraceID(id string) string {
	if digits := strings.ToLower(id); (len(id) == 16 || len(id) == 32) && lowerHex(digits) {
		return strings.Repeat("0", 32-len(id)) + digits
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// FormatTraceParent returns the traceparent header of a span, not 0, of the dial of a
// connection: a sampled one.
func FormatTraceParent(id string, span uint64) string {
	return fmt.Sprintf("00-%s-%016x-01", TraceID(id), span)
}

// TraceParent returns the trace-id of a traceparent header (W3C Trace Context
// §3.2), 32 hex digits, and the span's id, or "" and 0 where the header is not valid.
// Versions above 00 may have more behind it.
func TraceParent(header string) (trace string, span uint64) {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(header) < length || header[2] != '-' || header[35] != '-' || header[52] != '-' || header[:2] == "ff" ||
		len(header) > length && (header[:2] == "00" || header[length] != '-') {
		return "", 0
	}
	version, trace, parent, flags := header[:2], header[3:35], header[36:52], header[53:length]
	if !lowerHex(version+trace+parent+flags) || zeros(trace) || zeros(parent) {
		return "", 0
	}
	span, _ = strconv.ParseUint(parent, 16, 64)
	return trace, span
}

func lowerHex(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

func zeros(s string) bool { return strings.Trim(s, "0") == "" }
