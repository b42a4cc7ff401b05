package logging

import "github.com/sirupsen/logrus"

// Enabled reports whether a line of this level would be written. Paths of every connection
// use it, since the fields of a line cost memory even if it is dropped. For loggers other
// than those of logrus it returns true.
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
