// CoreDNS with the plugins that node-local-dns compiles in, and no others: what dnsd is compared with, option by option.
//
// node-local-dns itself is this with a set-up around it. The one that can be built (integration/peers/node-cache) has
// CoreDNS 1.10; this one knows every option that dnsd takes. `trace` and `pprof` are left out: dnsd says that they do nothing.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/timeouts"
	_ "github.com/coredns/coredns/plugin/whoami"

	"github.com/coredns/coredns/coremain"
)

func init() {
	// The order of plugin.cfg is the order in which a question passes them.
	dnsserver.Directives = []string{
		"timeouts", "reload", "bufsize", "bind", "debug", "health", "prometheus", "errors", "log", "dns64",
		"loadbalance", "cache", "rewrite", "template", "hosts", "loop", "forward", "whoami",
	}
}

func main() {
	coremain.Run()
}
