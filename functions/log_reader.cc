#include "functions/log_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "functions/log_stream.h"

namespace rekindle::functions {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;  // and the longest line
constexpr int kAskStopMs = 100;

// The kernel gives all of root's processes together no more than 128 instances of inotify. Who follows a log
// without one looks often.
class InotifyInstance {
 public:
  InotifyInstance() {
    if (in_use_.fetch_add(1) < kMostInUse) fd_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  }
  ~InotifyInstance() { in_use_.fetch_sub(1); }
  InotifyInstance(const InotifyInstance&) = delete;
  InotifyInstance& operator=(const InotifyInstance&) = delete;

  bool Watch(const std::string& folder) {
    if (fd_.valid() && ::inotify_add_watch(fd_.get(), folder.c_str(), IN_MODIFY | IN_CREATE | IN_ONLYDIR) < 0)
      fd_.Reset();
    return fd_.valid();
  }
  int fd() const { return fd_.get(); }  // -1: there is none

 private:
  static constexpr int kMostInUse = 16;
  static inline std::atomic<int> in_use_ = 0;
  UniqueFd fd_;
};

struct Stream {
  UniqueFd file;
  uint64_t next = 0;  // what was read ends here
  bool present = false;
};

// Lines that were written by one invocation.
struct Piece {
  const std::string* instance;
  int file;
  uint64_t begin, end;
  int64_t begin_unix_ns, end_unix_ns;
};

std::vector<LogTime> TimesOf(const std::string& path) {
  std::vector<LogTime> times;
  auto file = OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat info;
  if (!file.ok() || ::fstat(file->get(), &info) != 0 || !S_ISREG(info.st_mode)) return times;
  times.resize(std::min(static_cast<uint64_t>(info.st_size) / sizeof(LogTime), kMostTimes));
  const ssize_t got = ::pread(file->get(), times.data(), times.size() * sizeof(LogTime), 0);
  times.resize(got > 0 ? static_cast<size_t>(got) / sizeof(LogTime) : 0);
  std::stable_sort(times.begin(), times.end(),
                   [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return times;
}

// Reads [at, end) of a log line by line. The last line needs no end, if `partial`.
class LineReader {
 public:
  LineReader(int file, uint64_t at, uint64_t end, bool partial)
      : file_(file), at_(at), end_(end), partial_(partial), buffer_(kReadBytes, '\0') {}

  // `line` is good until the next call. False: there is none.
  bool Next(absl::string_view* line) {
    for (;;) {
      const absl::string_view rest(buffer_.data() + begin_, filled_ - begin_);
      const size_t length = rest.find('\n');
      if (length != absl::string_view::npos) return Take(rest.substr(0, length), length + 1, line);
      if (rest.size() == buffer_.size()) return Take(rest, rest.size(), line);
      // The zeros of a hole are left out, however many: they end a part of a line.
      if (const uint64_t data = NextData(); data > at_) {
        const size_t last = rest.find_last_not_of('\0');
        if (last != absl::string_view::npos) return Take(rest.substr(0, last + 1), rest.size(), line);
        begin_ = filled_;
        at_ = data;
        continue;
      }
      if (!Fill()) return partial_ && !rest.empty() && Take(rest, rest.size(), line);
    }
  }
  // What was given out ends here.
  uint64_t position() const { return at_ - (filled_ - begin_); }

 private:
  bool Take(absl::string_view text, size_t bytes, absl::string_view* line) {
    begin_ += bytes;
    // The last bytes of a hole.
    text.remove_prefix(std::min(text.find_first_not_of('\0'), text.size()));
    *line = text;
    return true;
  }
  // From where on there is more than a hole.
  uint64_t NextData() const {
    if (at_ >= end_) return at_;
    const off_t data = ::lseek(file_, static_cast<off_t>(at_), SEEK_DATA);
    if (data < 0) return errno == ENXIO ? end_ : at_;
    return std::min(static_cast<uint64_t>(data), end_);
  }
  // Where a hole begins, or all ends.
  uint64_t DataEnd() const {
    const off_t hole = ::lseek(file_, static_cast<off_t>(at_), SEEK_HOLE);
    return hole < 0 ? end_ : std::min(static_cast<uint64_t>(hole), end_);
  }
  bool Fill() {
    std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<ptrdiff_t>(filled_), buffer_.begin());
    filled_ -= std::exchange(begin_, 0);
    const uint64_t data_end = DataEnd();
    // Older lines have been dropped in this moment: the next look passes the hole over.
    if (data_end == at_ && at_ < end_) return true;
    const size_t wanted = std::min<uint64_t>(buffer_.size() - filled_, data_end - at_);
    const ssize_t got =
        wanted == 0 ? 0 : ::pread(file_, buffer_.data() + filled_, wanted, static_cast<off_t>(at_));
    if (got <= 0) return false;
    at_ += static_cast<uint64_t>(got);
    filled_ += static_cast<size_t>(got);
    return true;
  }

  const int file_;
  uint64_t at_;
  const uint64_t end_;
  const bool partial_;
  std::string buffer_;
  size_t begin_ = 0, filled_ = 0;
};

class LogMerger {
 public:
  LogMerger(const std::string& folder, const LogReadOptions& options, const LogLineSink& sink)
      : folder_(folder), options_(options), sink_(sink) {}

  absl::Status Run() {
    const ino_t folder_id = FolderId();
    std::optional<InotifyInstance> changes;
    bool watched = false;
    // Older than the first look: nothing is missed in between.
    if (options_.follow) watched = changes.emplace().Watch(folder_);
    absl::Status found = FindStreams();
    if (absl::IsNotFound(found)) return absl::OkStatus();
    RK_RETURN_IF_ERROR(found);
    if (!SendStored()) return absl::OkStatus();
    while (options_.follow) {
      pollfd entry{changes->fd(), POLLIN, 0};
      const int ready = ::poll(&entry, 1, kAskStopMs);
      // While instances have deleted logs open, no event tells that the folder is gone.
      if ((options_.stop && options_.stop()) || FolderId() != folder_id) break;
      if (ready <= 0 && watched) continue;
      char events[4096];
      while (::read(changes->fd(), events, sizeof events) > 0) {
      }
      found = FindStreams();
      if (absl::IsNotFound(found)) break;
      RK_RETURN_IF_ERROR(found);
      if (!SendNew()) break;
    }
    return absl::OkStatus();
  }

 private:
  ino_t FolderId() const {
    struct stat info;
    return ::stat(folder_.c_str(), &info) == 0 ? info.st_ino : 0;
  }

  absl::Status FindStreams() {
    RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(folder_));
    for (auto& [instance, stream] : streams_) stream.present = false;
    for (const std::string& name : names) {
      absl::string_view instance = name;
      if (!absl::ConsumeSuffix(&instance, ".log")) continue;
      Stream& stream = streams_[std::string(instance)];
      stream.present = true;
      if (stream.file.valid()) continue;
      // Its owner may have a lease on it: it is left out as long as that is there.
      stream.file.Reset(::open(absl::StrCat(folder_, "/", name).c_str(),
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK));
      struct stat info;
      if (!stream.file.valid() || ::fstat(stream.file.get(), &info) != 0 || info.st_uid != options_.owner) {
        streams_.erase(std::string(instance));
      }
    }
    for (auto at = streams_.begin(); at != streams_.end();)
      at = at->second.present ? std::next(at) : streams_.erase(at);
    return absl::OkStatus();
  }

  void AddPieces(const std::string& instance, Stream& stream, std::vector<Piece>* pieces) {
    struct stat info;
    if (::fstat(stream.file.get(), &info) != 0) return;
    const uint64_t end = static_cast<uint64_t>(info.st_size);
    const int64_t last_write = Nanos(info.st_mtim);
    uint64_t at = FirstByteOf(stream.file.get());
    int64_t since = last_write;
    std::vector<LogTime> times = TimesOf(absl::StrCat(folder_, "/", instance, ".times"));
    for (const LogTime& time : times) {
      if (time.offset > at && time.offset <= end) {
        pieces->push_back(
            {&instance, stream.file.get(), at, time.offset, std::min(since, time.unix_ns), time.unix_ns});
        at = time.offset;
      }
      since = time.unix_ns;
    }
    if (at < end)
      pieces->push_back({&instance, stream.file.get(), at, end, since, std::max(since, last_write)});
    stream.next = end;
  }

  // False: the sink has had enough.
  bool SendStored() {
    std::vector<Piece> pieces;
    for (auto& [instance, stream] : streams_) AddPieces(instance, stream, &pieces);
    std::erase_if(pieces, [&](const Piece& piece) { return piece.end_unix_ns < options_.since_unix_ns; });
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.begin_unix_ns < b.begin_unix_ns; });
    size_t first = 0;
    if (options_.tail_lines) {
      first = pieces.size();
      for (uint64_t wanted = *options_.tail_lines; first > 0 && wanted > 0;)
        wanted -= BeginAtLast(wanted, pieces[--first]);
    }
    for (; first < pieces.size(); ++first) {
      const Piece& piece = pieces[first];
      LineReader reader = ReaderOf(piece);
      absl::string_view line;
      while (reader.Next(&line)) {
        if (!sink_({*piece.instance, line, piece.begin_unix_ns})) return false;
      }
      // What has no end yet comes once it has one.
      if (Stream& stream = streams_[*piece.instance]; stream.next == piece.end)
        stream.next = reader.position();
    }
    return true;
  }

  // A line without an end that may still get one is kept back.
  bool IsPartialSent(const Piece& piece) const {
    return !options_.follow || streams_.at(*piece.instance).next != piece.end;
  }

  LineReader ReaderOf(const Piece& piece) const {
    return {piece.file, piece.begin, piece.end, IsPartialSent(piece)};
  }

  // Leaves out what is before its last lines, of which there are at most `most`, and returns their number.
  uint64_t BeginAtLast(uint64_t most, Piece& piece) const {
    // A log whose older lines are dropped meanwhile has fewer than were counted. That is seldom.
    constexpr int kTries = 4;
    for (int left = kTries;; --left) {
      const uint64_t first_byte = FirstByteOf(piece.file);
      absl::string_view line;
      uint64_t lines = 0;
      for (LineReader counter = ReaderOf(piece); counter.Next(&line);) ++lines;
      if (lines <= most) return lines;
      LineReader reader = ReaderOf(piece);
      for (uint64_t skip = lines - most; skip > 0 && reader.Next(&line);) --skip;
      if (FirstByteOf(piece.file) != first_byte && left > 0) continue;
      piece.begin = reader.position();
      return most;
    }
  }

  bool SendNew() {
    for (auto& [instance, stream] : streams_) {
      struct stat info;
      if (::fstat(stream.file.get(), &info) != 0) continue;
      const uint64_t end = static_cast<uint64_t>(info.st_size);
      if (end < stream.next) stream.next = 0;  // it has begun anew
      if (end == stream.next) continue;
      LineReader reader(stream.file.get(), std::max(stream.next, FirstByteOf(stream.file.get())), end, false);
      absl::string_view line;
      while (reader.Next(&line)) {
        if (!sink_({instance, line, UnixNanos()})) return false;
      }
      stream.next = reader.position();
    }
    return true;
  }

  const std::string& folder_;
  const LogReadOptions& options_;
  const LogLineSink& sink_;
  std::map<std::string, Stream> streams_;
};

}  // namespace

absl::Status ReadLogs(const std::string& folder, const LogReadOptions& options, const LogLineSink& sink) {
  return LogMerger(folder, options, sink).Run();
}

}  // namespace rekindle::functions
