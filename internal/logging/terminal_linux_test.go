package logging_test

import (
	"bufio"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

// On a terminal, text is for people: in colours, with the message first.
func TestTextOnATerminal(t *testing.T) {
	terminal, person := testutil.Terminal(t)
	log := testutil.Must(logging.New(logging.Options{Component: "x", Level: logrus.InfoLevel, Format: logging.Text, Out: terminal}))(t)
	log.Info("hello")
	line := testutil.Must(bufio.NewReader(person).ReadString('\n'))(t)
	testutil.Holds(t, strings.HasPrefix(line, "\x1b[") && strings.Contains(line, "] hello "), "%q", line)
}
