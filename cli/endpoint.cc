#include "cli/endpoint.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/descriptor_limit.h"
#include "base/host_port.h"
#include "base/human_units.h"
#include "base/status.h"
#include "dedup_store/store_identity.h"

namespace rekindle::cli {

std::string UnixSocketPath(const std::string& host) {
  absl::string_view path = host;
  if (!absl::ConsumePrefix(&path, "unix:")) return "";
  absl::ConsumePrefix(&path, "//");
  return std::string(path);
}

absl::Status CheckHost(const std::string& host) {
  if (absl::StartsWith(host, "unix:")) return absl::OkStatus();
  absl::Status known = CheckHostPort(host, AddressUse::kConnect);
  return known.ok() ? known : absl::InvalidArgumentError(absl::StrCat(known.message(), "; or unix:///PATH"));
}

namespace {

// The store of root's work where no daemon answers. A daemon that is there no more may have had another one
// than the usual: to make that now, on the disk of the system, would hide its images. One that died leaves
// the socket, in the way of nobody; where it was mounted by itself into a container it stays when the daemon
// has ended, and what is asked about is not here.
absl::Status WithoutTheDaemon(const Surroundings& surroundings, Endpoint* endpoint) {
  const std::string socket = UnixSocketPath(surroundings.default_host);
  const std::string last = surroundings.last_store(socket);
  endpoint->store = absl::StartsWith(last, "/") ? last : kDefaultStore;
  if (endpoint->store == kDefaultStore && !surroundings.exists(socket)) return absl::OkStatus();
  const std::string silent =
      absl::StrCat("the daemon (rekindled) at ", surroundings.default_host, " does not answer");
  if (!surroundings.exists(store::FormatPath(endpoint->store))) {
    return absl::UnavailableError(absl::StrCat(
        silent, ", and there is no store at ", endpoint->store,
        ": start it. In a container, mount its folder and not the socket alone, which each start makes anew. "
        "--no-daemon works without it"));
  }
  endpoint->warning = absl::StrCat(silent, ": working without it on its store ", endpoint->store);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Endpoint> ChooseEndpoint(const GlobalOptions& options, const Surroundings& surroundings) {
  if (options.host && (options.store || options.no_daemon)) {
    return absl::InvalidArgumentError(absl::StrCat("--host means a daemon and its store, ",
                                                   options.store ? "--store" : "--no-daemon",
                                                   " means work without one: give one of them"));
  }
  Endpoint endpoint;
  endpoint.tls_ca = options.tls_ca;
  endpoint.tls_certificate = options.tls_certificate;
  endpoint.tls_key = options.tls_key;
  std::string store = options.store ? *options.store : surroundings.store;
  if (options.host) {
    endpoint.host = *options.host;
  } else if (options.no_daemon || options.store) {
    endpoint.store = store.empty() ? kDefaultStore : store;
    endpoint.no_daemon = options.store ? "--store" : "--no-daemon";
  } else if (!surroundings.host.empty()) {
    endpoint.host = surroundings.host;
  } else if (!store.empty()) {
    endpoint.store = store;
    endpoint.no_daemon = "$REKINDLE_STORE";
  } else if (surroundings.answers(UnixSocketPath(surroundings.default_host))) {
    endpoint.host = surroundings.default_host;
  } else if (surroundings.root) {
    RK_RETURN_IF_ERROR(WithoutTheDaemon(surroundings, &endpoint));
  } else {
    return absl::PermissionDeniedError(
        absl::StrCat("no daemon (rekindled) answers at ", surroundings.default_host,
                     ", and without one only root can do it: start rekindled, or use sudo"));
  }
  if (!endpoint.host.empty()) {
    RK_RETURN_IF_ERROR(Annotate(CheckHost(endpoint.host), options.host ? "--host" : "$REKINDLE_HOST"));
  }
  if (!endpoint.store.empty() && !surroundings.page_cache.empty()) {
    // One that can't be understood is warned of, as those of other variables.
    const absl::StatusOr<uint64_t> bytes = ParseBytes(surroundings.page_cache);
    if (bytes.ok()) endpoint.page_cache_bytes = *bytes;
  }
  return endpoint;
}

absl::Status CheckHasFunctions(const Endpoint& endpoint) {
  if (!endpoint.host.empty()) return absl::OkStatus();
  if (endpoint.no_daemon.empty()) {
    return absl::UnavailableError(
        absl::StrCat("no daemon (rekindled) answers at ", kDefaultHost,
                     ", and functions live in it: start it, or name it with --host"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "functions live in the daemon (rekindled), which is not asked because of ", endpoint.no_daemon, ": ",
      absl::StartsWith(endpoint.no_daemon, "$") ? "unset that" : "leave that out",
      ", or name the daemon: --host ", kDefaultHost));
}

Endpoint OtherEndpoint(const GlobalOptions& options, const std::string& where) {
  Endpoint endpoint;
  endpoint.tls_ca = options.tls_ca;
  endpoint.tls_certificate = options.tls_certificate;
  endpoint.tls_key = options.tls_key;
  (absl::StartsWith(where, "/") ? endpoint.store : endpoint.host) = where;
  endpoint.elsewhere = true;
  return endpoint;
}

absl::StatusOr<std::unique_ptr<Client>> OpenElsewhere(const GlobalOptions& options,
                                                      const std::string& where) {
  const Endpoint endpoint = OtherEndpoint(options, where);
  if (endpoint.host.empty()) RaiseDescriptorLimit();
  return Client::Open(endpoint);
}

}  // namespace rekindle::cli
