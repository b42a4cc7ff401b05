package logging

import (
	"io"

	"github.com/sirupsen/logrus"
)

// Silent returns a logger that writes nothing, for packages that were given none.
func Silent() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(logger)
}
