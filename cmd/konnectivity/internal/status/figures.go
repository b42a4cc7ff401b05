package status

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"
)

// Plural is n with the singular or plural of word, which is many if given.
func Plural(n int, word string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + word
	case len(many) > 0:
		return fmt.Sprint(n, " ", many[0])
	default:
		return fmt.Sprintf("%d %ss", n, word)
	}
}

// Cut shortens s to most characters.
func Cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// Rate is Bytes per second; "-" for none.
func Rate(bytesPerSecond float64) string {
	if bytesPerSecond <= 0 {
		return "-"
	}
	return Bytes(bytesPerSecond) + "/s"
}

// Bytes is a number of bytes with a decimal unit.
func Bytes(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n /= 1000
		i++
	}
	if i == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

// Duration formats durations from milliseconds; 0 means unknown.
func Duration(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < .9995: // more would round to four digits of milliseconds
		return fmt.Sprintf("%.3g ms", seconds*1000)
	default:
		return Span(time.Duration(seconds * float64(time.Second)))
	}
}

// Milliseconds is d with a resolution of a microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Span formats durations from seconds to days.
func Span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", max(0, d.Seconds()))
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

// Addresses lists addrs.
func Addresses(addrs []netip.Addr) string {
	var words []string
	for _, a := range addrs {
		words = append(words, a.Unmap().String())
	}
	return strings.Join(words, ", ")
}
