package admin

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed web
var web embed.FS

// policy lets the page load its own files and ask its own API, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// mountPage serves the page and its files.
func mountPage(mux *http.ServeMux) {
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	serve := func(path, name, kind string) {
		mux.Handle(path, guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			w.Header().Set("Content-Type", kind)
			http.ServeFileFS(w, r, files, name)
		})))
	}
	serve("/{$}", "page.html", "text/html; charset=utf-8")
	serve("/page.css", "page.css", "text/css; charset=utf-8")
	serve("/page.js", "page.js", "text/javascript; charset=utf-8")
	serve("/icon.svg", "icon.svg", "image/svg+xml")
}
