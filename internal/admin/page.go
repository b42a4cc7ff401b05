package admin

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed web
var web embed.FS

// policy is the content security policy of the page: it may load its own files and use
// its own API.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// kinds are the media types of the page's files.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// mountPage serves the page at / and each of its files by its name.
func mountPage(handle func(pattern string, h http.Handler)) {
	names, err := fs.Glob(web, "web/*")
	if err != nil {
		panic(err) // the pattern is a good one
	}
	for _, name := range names {
		at, kind := strings.TrimPrefix(name, "web"), kinds[path.Ext(name)]
		if at == "/page.html" {
			at = "/{$}"
		}
		handle(at, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			w.Header().Set("Content-Type", kind)
			http.ServeFileFS(w, r, web, name)
		}))
	}
}
