package logging

import "github.com/sirupsen/logrus"

// Enabled reports whether a line of this level would be written. It is for
// paths that every connection takes, because a line's fields cost memory even
// if nobody sees it. For a logger that is not logrus's own it returns true.
func Enabled(log logrus.FieldLogger, level logrus.Level) bool {
	switch l := log.(type) {
	case *logrus.Logger:
		return l.IsLevelEnabled(level)
	case *logrus.Entry:
		return l.Logger.IsLevelEnabled(level)
	default:
		return true
	}
}
