// Which service a command talks to.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "daemon/listener_note.h"

namespace rekindle::cli {

inline constexpr char kDefaultHost[] = "unix:///run/rekindle/rekindled.sock";
inline constexpr char kDefaultStore[] = "/var/lib/rekindle";

// What the choice depends on besides the command line.
struct Surroundings {
  std::string store, host, page_cache;  // $REKINDLE_STORE and so on; empty: not set
  std::string default_host = kDefaultHost;
  bool root = false;
  std::function<bool(const std::string& path)> answers = UnixSocketAnswers;
  std::function<bool(const std::string& path)> exists = PathExists;
  // The store of the last daemon that listened at this socket; empty: not known.
  std::function<std::string(const std::string& path)> last_store = daemon::NoteOfListener;
};

// A --host or --store on the command line decides, then the environment's; else the daemon at the usual place
// if it answers, else this process if it is root's, on the store of the daemon that was there last.
// PermissionDenied otherwise; InvalidArgument: contradicting options; Unavailable: a daemon's socket is there
// and the store is not, so that this is not the place where they are.
absl::StatusOr<Endpoint> ChooseEndpoint(const GlobalOptions& options, const Surroundings& surroundings);

// Of a second service that a command names as --host or --store would: what begins with '/' is a store's
// folder. With the TLS files of the first one.
Endpoint OtherEndpoint(const GlobalOptions& options, const std::string& where);
// That service, for a command that is about nothing else. Where this process hosts it, it may open as many
// files as a daemon.
absl::StatusOr<std::unique_ptr<Client>> OpenElsewhere(const GlobalOptions& options, const std::string& where);

// InvalidArgument: it is neither "unix:PATH" nor "HOST:PORT".
absl::Status CheckHost(const std::string& host);

// The path in "unix:///path" or "unix:path"; empty for other addresses.
std::string UnixSocketPath(const std::string& host);

}  // namespace rekindle::cli
