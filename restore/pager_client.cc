#include "restore/pager_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/companion_program.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "base/status_json.h"
#include "base/subprocess.h"
#include "restore/pager_protocol.h"
#include "restore/pager_record.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

constexpr char kPagerProgram[] = "rekindle-pager";
constexpr absl::Duration kTidiesWithin = absl::Seconds(10), kIsReachedWithin = absl::Seconds(1);
// A hundred and more that it has not taken wait before: it hangs.
constexpr absl::Duration kTakesCallersWithin = absl::Seconds(10);
constexpr absl::Duration kEndOfCriuMayTake = absl::Seconds(2);

constexpr char kSocketEnding[] = ".sock";

// What the names of the store's pagers begin with.
absl::StatusOr<std::string> NameOfStore(const PagerPlace& place) {
  struct stat folder;
  if (::stat(place.store.c_str(), &folder) != 0) return ErrnoStatus(errno, place.store);
  return absl::StrCat("pager-", absl::Hex(folder.st_dev), "-", absl::Hex(folder.st_ino), "-");
}

// One for each store and build; of a store that was moved another, since the old one looks where it was.
absl::StatusOr<std::string> SocketPath(const PagerPlace& place, const std::string& program) {
  struct stat build;
  if (::stat(program.c_str(), &build) != 0) return ErrnoStatus(errno, program);
  RK_ASSIGN_OR_RETURN(const std::string store, NameOfStore(place));
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(place.store, error);
  if (error) return ErrnoStatus(error.value(), place.store);
  const uint64_t which = StableHash(absl::StrCat(build.st_ino, " ", build.st_mtime, " ", path.string()));
  return absl::StrCat(place.runtime_directory, "/", store, absl::Hex(which), kSocketEnding);
}

absl::StatusOr<UniqueFd> StartPager(const PagerPlace& place, const std::string& program,
                                    const std::string& path, Subprocess* started_process) {
  RK_ASSIGN_OR_RETURN(UniqueFd lock,
                      LockFile(absl::StrCat(place.runtime_directory, "/", kPagerLock), LOCK_EX));
  auto started = ConnectForPackets(path, kTakesCallersWithin);
  if (!absl::IsNotFound(started.status())) return started;
  for (const std::string& left : {path, absl::StrCat(path, kEndingPagerSuffix)}) ::unlink(left.c_str());
  RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenForPackets(path));
  RK_ASSIGN_OR_RETURN(UniqueFd log, OpenFile(absl::StrCat(place.runtime_directory, "/pager.log"),
                                             O_WRONLY | O_CREAT | O_APPEND));
  SubprocessOptions options;
  options.argv = {program, place.store, absl::StrCat(place.cache_bytes)};
  options.descriptors = {{listener.get(), kPagerSocket}, {log.get(), 2}};
  // It serves others' copies too: what a terminal or a script sends to the group of who starts it is not for
  // it.
  options.new_session = true;
  RK_ASSIGN_OR_RETURN(*started_process, Subprocess::Start(options));
  return ConnectForPackets(path, kTakesCallersWithin);
}

}  // namespace

absl::StatusOr<PagerClient> PagerClient::Connect(const PagerPlace& place, Subprocess* started) {
  RK_ASSIGN_OR_RETURN(std::string program, FindCompanionProgram(kPagerProgram));
  RK_ASSIGN_OR_RETURN(std::string path, SocketPath(place, program));
  auto socket = ConnectForPackets(path, kTakesCallersWithin);
  if (absl::IsNotFound(socket.status())) socket = StartPager(place, program, path, started);
  if (!socket.ok()) return Annotate(socket.status(), "reaching the pager");
  return PagerClient(*std::move(socket));
}

absl::StatusOr<PagerClient> PagerClient::ConnectToRunning(const PagerPlace& place) {
  RK_ASSIGN_OR_RETURN(std::string program, FindCompanionProgram(kPagerProgram));
  RK_ASSIGN_OR_RETURN(std::string path, SocketPath(place, program));
  RK_ASSIGN_OR_RETURN(UniqueFd socket, ConnectForPackets(path, kTakesCallersWithin));
  return PagerClient(std::move(socket));
}

absl::StatusOr<std::vector<PagerClient>> PagerClient::ConnectToAllRunning(const PagerPlace& place) {
  RK_ASSIGN_OR_RETURN(const std::string store, NameOfStore(place));
  const auto names = ListDirectory(place.runtime_directory);
  std::vector<PagerClient> pagers;
  if (absl::IsNotFound(names.status())) return pagers;  // nothing of ours has run yet
  RK_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, store) || !absl::EndsWith(name, kSocketEnding)) continue;
    auto socket = ConnectForPackets(absl::StrCat(place.runtime_directory, "/", name), kIsReachedWithin);
    if (absl::IsDeadlineExceeded(socket.status()))  // it hangs, and what was asked of it before waits there
      Log(LogLevel::kWarning, socket.status().message());
    if (absl::IsNotFound(socket.status()) || absl::IsDeadlineExceeded(socket.status())) continue;
    RK_RETURN_IF_ERROR(Annotate(socket.status(), "reaching the pagers that run"));
    pagers.push_back(PagerClient(*std::move(socket)));
  }
  return pagers;
}

// Of a pager of any build: what it says may be missing, or be of another kind.
class PagerClient::Answer {
 public:
  static absl::StatusOr<Answer> Read(std::string bytes) {
    Json json = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return Nonsense("it is no object");
    const Answer answer(std::move(bytes), std::move(json));
    if (!answer.json_.contains("error")) return answer;
    try {
      absl::Status error = StatusOf(answer.json_);
      return error.ok() ? Nonsense("an error that is none") : error;
    } catch (const Json::exception& e) {
      return Nonsense(e.what());
    }
  }

  const std::string& bytes() const { return bytes_; }

  template <typename T>
  absl::StatusOr<T> Needed(const char* key) const {
    try {
      return json_.at(key).get<T>();
    } catch (const Json::exception& e) {
      return Nonsense(e.what());
    }
  }
  // `otherwise`: it does not say.
  template <typename T>
  absl::StatusOr<T> Get(const char* key, const T& otherwise) const {
    if (!json_.contains(key)) return otherwise;
    return Needed<T>(key);
  }
  // A part of it, which may be missing.
  absl::StatusOr<Answer> Part(const char* key) const {
    RK_ASSIGN_OR_RETURN(Json part, Get(key, Json(Json::object())));
    if (!part.is_object()) return Nonsense(absl::StrCat("its ", key, " is no object"));
    return Answer("", std::move(part));
  }

 private:
  Answer(std::string bytes, Json json) : bytes_(std::move(bytes)), json_(std::move(json)) {}
  static absl::Status Nonsense(absl::string_view why) {
    return absl::InternalError(absl::StrCat("the pager answered nonsense: ", why));
  }

  std::string bytes_;
  Json json_;
};

bool PagerClient::HasEnded() const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  return socket_.valid() && ::poll(&entry, 1, 0) > 0;
}

absl::StatusOr<PagerClient::Answer> PagerClient::Ask(const std::string& request,
                                                     const std::vector<int>& descriptors,
                                                     absl::Duration within) {
  if (!socket_.valid()) return absl::UnavailableError("the pager was given up before");
  absl::Status sent = SendPacket(socket_.get(), request, descriptors);
  if (!sent.ok()) {
    return Annotate(sent,
                    "asking the pager, which may have ended at once: pager.log in the runtime directory "
                    "says why");
  }
  if (absl::Status waited = WaitForAnswer(within); !waited.ok()) {
    // The next answer would be taken for one to another request.
    socket_.Reset();
    return waited;
  }
  RK_ASSIGN_OR_RETURN(std::optional<Packet> answer, ReceivePacket(socket_.get()));
  if (!answer.has_value()) {
    return absl::AbortedError(
        "the pager has died: jobs whose memory it still served are ended; see pager.log in the runtime "
        "directory");
  }
  return Answer::Read(std::move(answer->bytes));
}

absl::Status PagerClient::WaitForAnswer(absl::Duration within) const {
  const Deadline deadline(within);
  for (;;) {
    pollfd entries[2] = {{socket_.get(), POLLIN, 0}, {cancel_fd_, POLLIN, 0}};
    const int n = ::poll(entries, 2, deadline.left_ms());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "waiting for the pager");
    if (n == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the pager has not answered for ", absl::FormatDuration(within),
                       ": it hangs, or the disk of its store does; see pager.log in the runtime directory"));
    }
    if (entries[0].revents != 0) return absl::OkStatus();
    return absl::CancelledError("nobody waits for the pager's answer any more");
  }
}

absl::StatusOr<uint64_t> PagerClient::Attach(const AttachOptions& options, int listener, int keeper,
                                             int memory_group) {
  const Json request = {{"do", "attach"},
                        {"clone", options.clone},
                        {"image", options.image},
                        {"fill", std::string(NameOf(options.fill))},
                        {"record_ms", absl::ToInt64Milliseconds(options.record)},
                        {"until_answer", options.until_answer},
                        {"until_ready", options.until_ready},
                        {"timeline", options.timeline}};
  std::vector<int> descriptors = {listener, keeper};
  if (memory_group >= 0) descriptors.push_back(memory_group);
  RK_ASSIGN_OR_RETURN(const Answer answer, Ask(request.dump(), descriptors));
  return answer.Get("pages", uint64_t{0});
}

absl::Status PagerClient::Expect(const std::string& image) {
  return Ask(Json{{"do", "expect"}, {"image", image}}.dump()).status();
}

absl::StatusOr<PagerClient::Prefilled> PagerClient::Prefill(const std::string& clone,
                                                            const std::vector<pid_t>& pids,
                                                            const std::vector<UniqueFd>& processes) {
  std::vector<int> descriptors;
  Json request;
  for (size_t begin = 0; begin == 0 || begin < processes.size(); begin += kMaxPacketDescriptors) {
    const size_t end = std::min(processes.size(), begin + kMaxPacketDescriptors);
    descriptors.clear();
    for (size_t i = begin; i < end; ++i) descriptors.push_back(processes[i].get());
    request = {{"do", "processes"},
               {"pids", std::vector<pid_t>(pids.begin() + static_cast<ptrdiff_t>(begin),
                                           pids.begin() + static_cast<ptrdiff_t>(end))}};
    if (end < processes.size()) RK_RETURN_IF_ERROR(Ask(request.dump(), descriptors).status());
  }
  // The last go with it, most often all: one request.
  request["do"] = "prefill";
  request["clone"] = clone;
  RK_ASSIGN_OR_RETURN(const Answer answer, Ask(request.dump(), descriptors));
  Prefilled prefilled;
  RK_ASSIGN_OR_RETURN(prefilled.pages, answer.Get("pages", uint64_t{0}));
  RK_ASSIGN_OR_RETURN(prefilled.settled_bytes, answer.Get("settled_bytes", uint64_t{0}));
  RK_ASSIGN_OR_RETURN(prefilled.seconds, answer.Get("seconds", 0.0));
  return prefilled;
}

absl::Status PagerClient::Ready(const std::string& clone) {
  return Ask(Json{{"do", "ready"}, {"clone", clone}}.dump()).status();
}

absl::StatusOr<rekindle::Timeline> PagerClient::Timeline() {
  // CRIU has ended by now; that it has said so first the pager may not have read yet.
  for (const Deadline deadline(kEndOfCriuMayTake);; absl::SleepFor(kEndOfCriuMayTake / 1000)) {
    RK_ASSIGN_OR_RETURN(const Answer answer, Ask(Json{{"do", "timeline"}}.dump()));
    RK_ASSIGN_OR_RETURN(const bool final, answer.Get("final", true));
    if (final || deadline.passed()) return PagerRecord::Decode(answer.bytes());
  }
}

absl::StatusOr<bool> PagerClient::Fill(const std::string& clone) {
  absl::StatusOr<Answer> answer = Ask(Json{{"do", "fill"}, {"clone", clone}}.dump());
  if (absl::IsNotFound(answer.status())) return true;
  RK_RETURN_IF_ERROR(answer.status());
  return answer->Needed<bool>("complete");
}

absl::StatusOr<PagerClient::Numbers> PagerClient::Stats() {
  RK_ASSIGN_OR_RETURN(const Answer answer, Ask(Json{{"do", "stats"}, {"clones", false}}.dump()));
  RK_ASSIGN_OR_RETURN(const Answer cache, answer.Part("cache"));
  Numbers numbers;
  const std::tuple<const Answer*, const char*, uint64_t*> all[] = {
      {&answer, "serving", &numbers.clones},
      {&answer, "missing", &numbers.missing_pages},
      {&answer, "clones_served", &numbers.clones_served},
      {&answer, "images", &numbers.images},
      {&cache, "hits", &numbers.cache.hits},
      {&cache, "misses", &numbers.cache.misses},
      {&cache, "evictions", &numbers.cache.evictions},
      {&cache, "refusals", &numbers.cache.refusals},
      {&cache, "frames", &numbers.cache.frames},
      {&cache, "warmed", &numbers.cache.warmed},
      {&cache, "bytes", &numbers.cache.bytes},
      {&cache, "memory_bytes", &numbers.cache.memory_bytes},
      {&cache, "budget_bytes", &numbers.cache.budget_bytes},
      {&cache, "huge_bytes", &numbers.huge_bytes},
  };
  for (const auto& [of, name, number] : all) {
    RK_ASSIGN_OR_RETURN(*number, of->Get(name, uint64_t{0}));
  }
  RK_ASSIGN_OR_RETURN(numbers.warming, cache.Get("warming", false));
  return numbers;
}

absl::StatusOr<bool> PagerClient::DropWorkingSet(const std::string& image) {
  RK_ASSIGN_OR_RETURN(const Answer answer, Ask(Json{{"do", "forget"}, {"image", image}}.dump()));
  return answer.Get("dropped", false);
}

absl::Status PagerClient::ForgetRemovedImages(bool collected) {
  return Ask(Json{{"do", "tidy"}, {"collected", collected}}.dump(), {}, kTidiesWithin).status();
}

absl::StatusOr<uint64_t> PagerClient::Resize(uint64_t cache_bytes) {
  RK_ASSIGN_OR_RETURN(const Answer answer, Ask(Json{{"do", "resize"}, {"cache_bytes", cache_bytes}}.dump()));
  return answer.Get("cache_bytes", uint64_t{0});
}

}  // namespace rekindle::restore
