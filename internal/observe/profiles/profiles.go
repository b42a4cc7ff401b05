// Package profiles serves /debug/pprof/. It is a package of its own because
// net/http/pprof adds half a megabyte to every program that imports it.
package profiles

import (
	"net/http"
	"net/http/pprof"
	"runtime"
)

// Mount serves /debug/pprof/ on mux. With contention the process samples every
// blocking event and mutex wait, which costs CPU all the time. This applies to
// the whole process.
func Mount(mux *http.ServeMux, contention bool) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusMovedPermanently))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	if contention {
		runtime.SetBlockProfileRate(1)
		runtime.SetMutexProfileFraction(1)
	}
}
