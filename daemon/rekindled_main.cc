// The node daemon `rekindled`.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/command_line.h"
#include "base/deadlock_checks.h"
#include "base/descriptor_limit.h"
#include "base/ends_for_limits.h"
#include "base/host_port.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/near_words.h"
#include "base/oom_score.h"
#include "base/program_start.h"
#include "base/status.h"
#include "daemon/config_file.h"
#include "daemon/drain_notice.h"
#include "daemon/environment_check.h"
#include "daemon/orphan_collector.h"
#include "daemon/server.h"
#include "daemon/service_notify.h"
#include "daemon/user_groups.h"
#include "daemon/version.h"
#include "restore/clone.h"

namespace rekindle::daemon {
namespace {

// Exit statuses, as those of the command.
constexpr int kFailed = 1, kBadUsage = 2;

// How long calls in work may go on after SIGTERM. A capture that is cancelled lets its job go on.
constexpr size_t kDefaultJobsOfOne = 1000;
constexpr int kDefaultGraceSeconds = 20, kMostGraceSeconds = 24 * 3600;
constexpr int kMostStandbyCopies = 10000;
constexpr uint64_t kDefaultLogLimit = uint64_t{10} << 30;
constexpr double kDefaultScrubDays = 14, kDefaultLogDays = 30, kMostDays = 3650;
constexpr size_t kMostConnections = 65536;  // each takes a descriptor
constexpr uint64_t kFewestDescriptors = 128;
constexpr absl::Duration kBetweenDrainNotices = absl::Seconds(5);

// Does "HOST:PORT" stand for all addresses of the machine, or for a port that the kernel is to choose?
bool ListensEverywhere(const std::string& listen) {
  return absl::StartsWith(listen, "0.0.0.0:") || absl::StartsWith(listen, "[::]:") ||
         absl::StartsWith(listen, ":") || absl::EndsWith(listen, ":0");
}

bool IsOfThisMachineAlone(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "localhost:");
}

// SIGINT, SIGTERM and SIGUSR1, blocked in all threads made later.
sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  return set;
}

// Takes images on a thread of its own, so that a signal to end is seen meanwhile.
class ImagesOnRequest {
 public:
  explicit ImagesOnRequest(std::function<void()> take)
      : take_(std::move(take)), thread_(&ImagesOnRequest::Loop, this) {}
  // Waits until they are taken, which the end of the server cuts short.
  ~ImagesOnRequest() {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
    }
    thread_.join();
  }
  // Once more, if it is at it.
  void Request() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    requested_ = true;
  }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      {
        absl::MutexLock lock(&mutex_);
        auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return requested_ || ending_; };
        mutex_.Await(absl::Condition(&wanted));
        if (ending_) return;
        requested_ = false;
      }
      take_();
    }
  }

  const std::function<void()> take_;
  absl::Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::Status Serve(ServerOptions options, int grace_seconds, const std::string& drain_notice) {
  RaiseDescriptorLimit();
  if (absl::Status enough = CheckDescriptorLimit(kFewestDescriptors, "rekindled"); !enough.ok())
    return enough;
  for (const std::string& address : options.functions_http) {
    if (IsOfThisMachineAlone(address)) continue;
    Log(LogLevel::kWarning,
        absl::StrCat("--functions-http ", address,
                     " can be reached from other machines, whose callers are refused, "
                     "as nobody vouches for who they are, and take connections from those of this one: name "
                     "127.0.0.1:PORT or unix:PATH"));
  }
  sigset_t waited_for = BlockSignals();
  const OrphanCollector orphans;
  const std::string socket = options.socket, store = options.node.store;
  RK_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(std::move(options)));
  Log(LogLevel::kInfo,
      absl::StrCat("rekindled ", kVersion, " listens on unix://", socket,
                   server->tcp_port() > 0 ? absl::StrCat(" and TCP port ", server->tcp_port()) : "",
                   ", store ", store));
  if (absl::Status told = NotifyServiceManager("READY=1"); !told.ok())
    Log(LogLevel::kWarning, told.message());
  server->WarmUp();

  std::optional<DrainNotice> notice;
  if (!drain_notice.empty())
    notice.emplace(drain_notice, kBetweenDrainNotices, [&] { server->CheckpointJobs(); });
  ImagesOnRequest images([&] { server->CheckpointJobs(); });
  int signal = 0;
  while (::sigwait(&waited_for, &signal) != 0 || signal == SIGUSR1) {
    if (signal == SIGUSR1) images.Request();
  }
  Log(LogLevel::kInfo,
      "ending: no new calls are taken; jobs run on, but for those in a container that ends with this daemon");
  NotifyServiceManager("STOPPING=1").IgnoreError();
  server->Stop(absl::Seconds(grace_seconds));
  return absl::OkStatus();
}

// Taken for an option that was not given, it would let the daemon work in other places than were meant.
void CheckForEmptyValues(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty())
        throw CLI::ValidationError(option->get_name(), "the value is empty; is a variable not set?");
    }
  }
}

// Clients look for it from folders of their own.
std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal(); }

// CLI11's own check of a range lets "nan" through.
std::string CheckDays(const std::string& text) {
  double days = 0;
  if (absl::SimpleAtod(text, &days) && days >= 0 && days <= kMostDays) return "";
  return absl::StrCat("'", text, "' is no number of days: write 0 to ", kMostDays);
}

// ": did you mean …?" with an option that is like `word`, both without dashes; empty: none is.
std::string Hint(const CLI::App& app, absl::string_view word, absl::string_view dashes) {
  std::vector<KnownWord> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back({name});
  }
  const std::string near = NearWord(word, known);
  return near.empty() ? "" : absl::StrCat(": did you mean '", dashes, near, "'?");
}

// What `app` has left over of the command line is neither an option nor the value of one. Empty: nothing.
std::string WrongWord(const CLI::App& app) {
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    if (!absl::StartsWith(word, "-"))
      return absl::StrCat("'", word, "': rekindled takes options alone (commands are those of 'rekindle')");
    const std::string option = word.substr(0, word.find('='));
    return absl::StrCat("there is no option '", option, "'",
                        Hint(app, absl::StripPrefix(option, "--"), "--"));
  }
  return "";
}

int BadConfig(const CLI::App& app, absl::string_view what) {
  const std::vector<std::string> file = app.get_config_ptr()->results();
  Log(LogLevel::kError,
      absl::StrCat("--config ", file.empty() ? "" : file.back(), ": ", what, " (see 'rekindled --help')"));
  return kBadUsage;
}

// What the command line says, beside what the server takes as it is.
struct CommandLine {
  ServerOptions options;
  std::string drain_notice, group, gpu_host_memory, functions_memory, page_cache, log_limit;
  int grace_seconds = kDefaultGraceSeconds;
  double scrub_days = kDefaultScrubDays, log_days = kDefaultLogDays;
  bool verbose = false;
};

void AddOptions(CLI::App& app, CommandLine* line) {
  app.add_option("--store", line->options.node.store, "The store's folder")
      ->envname("REKINDLE_STORE")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--socket", line->options.socket,
                 "The Unix socket to listen on [RUNTIME-DIR/rekindled.sock]")
      ->type_name("PATH");
  app.add_option("--runtime-dir", line->options.node.runtime_directory,
                 "Sockets and the list of jobs [/run/rekindle]")
      ->envname("REKINDLE_RUNTIME_DIR")
      ->type_name("DIR");
  app.add_option("--log-dir", line->options.node.log_directory,
                 "Logs of jobs that name none [/var/log/rekindle]")
      ->envname("REKINDLE_LOG_DIR")
      ->type_name("DIR");
  app.add_option(
         "--log-days", line->log_days,
         "Remove a log there when its job is forgotten and nobody has written to it for so many days; "
         "0: never")
      ->type_name("N")
      ->check(CheckDays)
      ->capture_default_str();
  app.add_option("--log-limit", line->log_limit,
                 "While these logs take more room than that together, remove the oldest of the user with the "
                 "most, unless younger than a day; 0: any [10G]")
      ->type_name("SIZE");
  app.add_option("--group", line->group, "Members of this group may do all that root may")->type_name("NAME");
  app.add_option("--jobs-of-one", line->options.node.jobs_of_one,
                 "Jobs and copies that one user may have at a time, administrators excepted; 0: any number")
      ->type_name("NUMBER")
      ->capture_default_str();
  CLI::Option* listen = app.add_option("--listen", line->options.tls.listen, "Serve TCP too, with mutual TLS")
                            ->type_name("HOST:PORT");
  app.add_option("--functions-http", line->options.functions_http,
                 "Serve AWS Lambda's Invoke path there, for callers of this machine: HOST:PORT or unix:PATH")
      ->type_name("ADDRESS");
  app.add_option("--functions-connections", line->options.functions_limits.connections,
                 "For --functions-http: connections of all callers together")
      ->type_name("NUMBER")
      ->check(CLI::Range(size_t{1}, kMostConnections))
      ->capture_default_str();
  app.add_option("--functions-connections-of-one", line->options.functions_limits.connections_of_one,
                 "For --functions-http: connections of one user, root excepted")
      ->type_name("NUMBER")
      ->check(CLI::Range(size_t{1}, kMostConnections))
      ->capture_default_str();
  app.add_option(
         "--functions-memory", line->functions_memory,
         "Memory for functions: beyond it nothing is kept that only speeds up starts [60 % of what is free]")
      ->type_name("SIZE");
  app.add_option("--tls-cert", line->options.tls.certificate, "For --listen: the daemon's certificate")
      ->type_name("FILE")
      ->needs(listen);
  app.add_option("--tls-key", line->options.tls.key, "For --listen: its key")
      ->type_name("FILE")
      ->needs(listen);
  app.add_option(
         "--tls-client-ca", line->options.tls.client_ca,
         "For --listen: certificates that vouch for clients, whose common names are 'admin' or 'uid:N'")
      ->type_name("FILE")
      ->needs(listen);
  app.add_option(
         "--advertise", line->options.advertise,
         "For --listen: where other daemons reach this one, for groups [--listen, if that names an address]")
      ->type_name("HOST:PORT")
      ->needs(listen);
  app.add_option("--gpu-host-memory", line->gpu_host_memory,
                 "Host memory that parked jobs' GPU memory may take, such as 200G [all that is free]")
      ->type_name("SIZE");
  // One that can't be understood is warned of, as those of other variables.
  if (const char* given = std::getenv("REKINDLE_PAGE_CACHE"); given != nullptr && ParseBytes(given).ok())
    line->page_cache = given;
  app.add_option(
         "--page-cache", line->page_cache,
         "Memory for the pages that clones share, such as 4G; what clones have themselves is beyond it "
         "[$REKINDLE_PAGE_CACHE, else 1G, or a quarter of what is free where that is less]")
      ->type_name("SIZE");
  app.add_option("--standby", line->options.node.standby_copies,
                 "Copies kept ready of each image that clones are started of; 0: none")
      ->check(CLI::Range(0, kMostStandbyCopies))
      ->capture_default_str();
  app.add_flag("--track-dirty-pages", line->options.node.track_dirty_pages,
               "Copy only what was written since the last image, where the kernel can tell "
               "(CONFIG_MEM_SOFT_DIRTY). Not together with other programs that use its marks");
  app.add_option("--drain-notice", line->drain_notice,
                 "A shell command, run every 5 seconds: when its exit status is 0 this machine is about to "
                 "go, and an "
                 "image is taken of every supervised job")
      ->type_name("COMMAND");
  app.add_option("--metrics", line->options.metrics,
                 "Answer Prometheus' GET /metrics there: HOST:PORT or unix:PATH. Whoever reaches it may read")
      ->type_name("ADDRESS");
  app.add_option("--scrub-days", line->scrub_days,
                 "Read each byte of the store once in so many days, in the background, to find what the disk "
                 "has damaged; 0: never")
      ->type_name("N")
      ->check(CheckDays)
      ->capture_default_str();
  app.add_option("--grace", line->grace_seconds, "Seconds that calls in work may go on after SIGTERM")
      ->check(CLI::Range(0, kMostGraceSeconds))
      ->capture_default_str();
  app.add_flag("-v,--verbose", line->verbose, "Log more");
  app.set_version_flag("--version", std::string("rekindled ") + kVersion);
  app.set_config("--config", "", "Read options from this file (TOML; the names of the options without --)");
  app.config_formatter(CheckedConfig(app));
  // One that is written wrong would be left out in silence.
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.footer("Exit status: 0 ended by a signal, 1 failed, 2 bad usage.");
}

// Where there is nothing to do but to end: the exit status.
std::optional<int> Parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    CheckForEmptyValues(app);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ConfigError& error) {
    absl::string_view what = error.what();
    if (absl::ConsumePrefix(&what, "INI was not able to parse "))  // names what is no option
      return BadConfig(app, absl::StrCat("'", what, "' is no option of rekindled", Hint(app, what, "")));
    return BadConfig(app, what);
  } catch (const CLI::ParseError& error) {
    const std::string wrong = WrongWord(app);
    Log(LogLevel::kError, absl::StrCat(wrong.empty() ? error.what() : wrong, " (see 'rekindled --help')"));
    return kBadUsage;
  }
  return std::nullopt;
}

// `set` takes what is written there, if anything is.
template <typename Set>
absl::Status ParseSize(absl::string_view option, const std::string& text, Set set) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (bytes.ok()) set(*bytes);
  return Annotate(bytes.status(), option);
}

// Puts what was left out in its place, and checks what was not.
absl::Status Complete(CommandLine* line) {
  ServerOptions& options = line->options;
  NodeOptions& node = options.node;
  if (node.runtime_directory.empty()) node.runtime_directory = DefaultRuntimeDirectory();
  if (node.log_directory.empty()) node.log_directory = DefaultLogDirectory();
  if (options.socket.empty()) options.socket = absl::StrCat(node.runtime_directory, "/rekindled.sock");
  options.socket = Absolute(options.socket);
  node.socket = options.socket;
  if (options.advertise.empty() && !ListensEverywhere(options.tls.listen))
    options.advertise = options.tls.listen;
  options.scrub_period = absl::Hours(24) * line->scrub_days;
  node.log_bounds = {absl::Hours(24) * line->log_days, kDefaultLogLimit};
  node.page_cache_bytes = restore::DefaultCacheBytes();
  if (!options.tls.listen.empty())
    RK_RETURN_IF_ERROR(Annotate(CheckHostPort(options.tls.listen, AddressUse::kListen), "--listen"));
  if (!options.advertise.empty())
    RK_RETURN_IF_ERROR(Annotate(CheckHostPort(options.advertise, AddressUse::kConnect), "--advertise"));
  if (!line->group.empty()) {
    const absl::StatusOr<gid_t> found = FindGroup(line->group);
    RK_RETURN_IF_ERROR(Annotate(found.status(), "--group"));
    node.admin_group = *found;
  }
  RK_RETURN_IF_ERROR(ParseSize("--gpu-host-memory", line->gpu_host_memory,
                               [&](uint64_t bytes) { node.gpu_host_budget = bytes; }));
  RK_RETURN_IF_ERROR(
      ParseSize("--log-limit", line->log_limit, [&](uint64_t bytes) { node.log_bounds.bytes = bytes; }));
  RK_RETURN_IF_ERROR(
      ParseSize("--page-cache", line->page_cache, [&](uint64_t bytes) { node.page_cache_bytes = bytes; }));
  return ParseSize("--functions-memory", line->functions_memory,
                   [&](uint64_t bytes) { node.function_memory_bytes = bytes; });
}

int Main(int argc, char** argv) {
  // A bundle's is started by the loader, and would have its name.
  ::prctl(PR_SET_NAME, "rekindled");
  CLI::App app("The Rekindle node daemon: serves checkpoint and restore to the users of this machine.",
               "rekindled");
  CommandLine line;
  line.options.node.daemon = true;
  line.options.node.jobs_of_one = kDefaultJobsOfOne;
  line.options.node.store = "/var/lib/rekindle";
  AddOptions(app, &line);
  if (const std::optional<int> code = Parse(app, argc, argv)) return *code;
  SetLogLevel(line.verbose ? LogLevel::kDebug : LogLevel::kInfo);
  WarnOfDaemonEnvironment();
  absl::Status status = Complete(&line);
  if (status.ok()) status = Serve(std::move(line.options), line.grace_seconds, line.drain_notice);
  if (status.ok()) return 0;
  Log(LogLevel::kError, status.message());
  return absl::IsInvalidArgument(status) ? kBadUsage : kFailed;
}

}  // namespace
}  // namespace rekindle::daemon

int main(int argc, char** argv) {
  rekindle::BeginProgram();
  rekindle::TellOfLimitsAtTheEnd("rekindled");
  rekindle::LeaveOutDeadlockChecks();
  rekindle::SpareFromOutOfMemory();
  return rekindle::daemon::Main(argc, argv);
}
