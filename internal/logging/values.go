package logging

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
)

// choice is a flag whose value is parsed when it is given, so that an invalid one is
// refused like that of any other flag.
type choice[T any] struct {
	target *T
	parse  func(string) (T, error)
	text   string
}

// addChoice defines a flag. def must parse, unless it is "".
func addChoice[T any](set *pflag.FlagSet, target *T, parse func(string) (T, error), name, def, usage string) {
	c := &choice[T]{target: target, parse: parse}
	if def != "" {
		_ = c.Set(def) // tests parse every default
	}
	set.Var(c, name, usage)
}

// Set implements pflag.Value.
func (c *choice[T]) Set(text string) error {
	v, err := c.parse(text)
	if err != nil {
		return err
	}
	*c.target, c.text = v, text
	return nil
}

// String implements pflag.Value.
func (c *choice[T]) String() string { return c.text }

// Type implements pflag.Value; help shows it.
func (c *choice[T]) Type() string { return "string" }

func parseLevel(text string) (logrus.Level, error) {
	level, err := logrus.ParseLevel(text)
	if err != nil || level < logrus.ErrorLevel {
		return 0, errors.New("use error, warn, info, debug or trace")
	}
	return level, nil
}

func parseFormat(text string) (Format, error) {
	switch f := Format(strings.ToLower(text)); f {
	case JSON, Text:
		return f, nil
	}
	return "", errors.New("use json or text")
}

// parseSeverity parses a severity of klog by name or number.
func parseSeverity(text string) (logrus.Level, error) {
	names := []string{"INFO", "WARNING", "ERROR", "FATAL"}
	levels := []logrus.Level{logrus.TraceLevel, logrus.WarnLevel, logrus.ErrorLevel, logrus.FatalLevel}
	if i := slices.Index(names, strings.ToUpper(text)); i >= 0 {
		return levels[i], nil
	}
	if i, err := strconv.Atoi(text); err == nil && i >= 0 && i < len(levels) {
		return levels[i], nil
	}
	return 0, errors.New("use INFO, WARNING, ERROR, FATAL or 0 to 3")
}

// parseVmodule checks a --vmodule, which klog interprets.
func parseVmodule(text string) (string, error) {
	for part := range strings.SplitSeq(text, ",") {
		pattern, number, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(number); part != "" && (pattern == "" || err != nil || n < 0) {
			return "", errors.New("use pattern=N, comma-separated")
		}
	}
	return text, nil
}
