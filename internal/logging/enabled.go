package logging

import "github.com/sirupsen/logrus"

// Enabled says whether a line of this level would be written, for paths that
// every connection takes: the fields of a line cost memory also where nobody
// sees it. Of a logger that is not logrus's own it says yes.
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
