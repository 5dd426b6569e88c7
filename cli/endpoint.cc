#include "cli/endpoint.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "base/human_units.h"
#include "base/status.h"

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
  } else if (!surroundings.host.empty()) {
    endpoint.host = surroundings.host;
  } else if (!store.empty()) {
    endpoint.store = store;
  } else if (surroundings.answers(UnixSocketPath(surroundings.default_host))) {
    endpoint.host = surroundings.default_host;
  } else if (surroundings.root) {
    endpoint.store = kDefaultStore;
  } else {
    return absl::PermissionDeniedError(
        absl::StrCat("no daemon (rekindled) answers at ", surroundings.default_host,
                     ", and without one only root can do it: start rekindled, or use sudo"));
  }
  if (!endpoint.host.empty()) {
    RK_RETURN_IF_ERROR(Annotate(CheckHost(endpoint.host), options.host ? "--host" : "$REKINDLE_HOST"));
  }
  if (!endpoint.store.empty() && !surroundings.page_cache.empty()) {
    absl::StatusOr<uint64_t> bytes = ParseBytes(surroundings.page_cache);
    if (!bytes.ok()) return Annotate(bytes.status(), "$REKINDLE_PAGE_CACHE");
    endpoint.page_cache_bytes = *bytes;
  }
  return endpoint;
}

Endpoint OtherEndpoint(const GlobalOptions& options, const std::string& where) {
  Endpoint endpoint;
  endpoint.tls_ca = options.tls_ca;
  endpoint.tls_certificate = options.tls_certificate;
  endpoint.tls_key = options.tls_key;
  (absl::StartsWith(where, "/") ? endpoint.store : endpoint.host) = where;
  return endpoint;
}

}  // namespace rekindle::cli
