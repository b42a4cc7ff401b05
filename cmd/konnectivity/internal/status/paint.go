package status

// Paint has the escape sequences of colours; the zero value has none.
type Paint struct{ Green, Red, Yellow, Bold, Dim, Off string }

// PaintIf returns the colours if on is true.
func PaintIf(on bool) Paint {
	if !on {
		return Paint{}
	}
	return Paint{"\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"}
}
