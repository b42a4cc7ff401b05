package logging

import (
	"testing"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
)

func TestEnabled(t *testing.T) {
	logger := logrus.New()
	logger.SetLevel(logrus.InfoLevel)
	for name, log := range map[string]logrus.FieldLogger{"logger": logger, "entry": logger.WithField("a", "b")} {
		if Enabled(log, logrus.DebugLevel) || !Enabled(log, logrus.InfoLevel) || !Enabled(log, logrus.ErrorLevel) {
			t.Errorf("%s at info: debug %v, info %v, error %v", name,
				Enabled(log, logrus.DebugLevel), Enabled(log, logrus.InfoLevel), Enabled(log, logrus.ErrorLevel))
		}
		testutil.MaxAllocs(t, 0, func() { Enabled(log, logrus.DebugLevel) })
	}
	testutil.Holds(t, Enabled(struct{ logrus.FieldLogger }{logger}, logrus.DebugLevel),
		"what another logger writes cannot be known")
}
