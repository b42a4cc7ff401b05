package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// replaceTable puts table between the marks of a name in a Markdown file.
func replaceTable(file, name, table string) error {
	beginMark, endMark := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no marks %q and %q to write between", file, strings.TrimSpace(beginMark), endMark)
	}
	return os.WriteFile(file, []byte(before+beginMark+table+endMark+after), 0o644)
}

func download(url, file string) error {
	res, err := http.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, res.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, res.Body); err != nil {
		return err
	}
	return f.Close()
}
