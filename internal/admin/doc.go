// Package admin shows the state of a running process of the suite: its connections, its
// peers, its latest failures and the history of the last 15 minutes. It consists of a
// Table, which is a tunnel.Observer, a versioned JSON API under /api/v1/
// (docs/admin-api.md), and a page that reads that API.
//
// Its cost is bounded at 10,000 connections and 1,000 peers: connections are added and
// removed without a common lock, one goroutine samples them a few times a second,
// answers are paged, and no lock is held while they are encoded. The API is read-only
// and shows no secrets: only addresses, ids, figures, and the reasons for failures that
// clients are told too.
//
// Servers, agents and sidecars each have a Table and serve a Handler over it.
// The operator's tool reads the API with the same types.
package admin
