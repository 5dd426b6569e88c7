// How long must a process stand still for its memory to be copied, and what does it lose besides? Ways to
// copy it, side by side: docs/freeze-ways.md. Prints tables in Markdown.
//
//   freeze_ways [--mib 1024] [--rounds 5] [--percent 0 5 25 100] [--only copy cut]
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/command_line.h"
#include "base/human_units.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "bench/freeze_copies.h"
#include "bench/freeze_victim.h"

namespace rekindle::bench {
namespace {

// Of Linux 6.7; Debian 12's header is older.
constexpr uint64_t kWpUnpopulated = 1 << 13, kWpAsync = 1 << 15;

constexpr char kToday[] = "copy (what captures do)";
// Beside a process that runs; while it stands still there are two.
constexpr size_t kThreadsBeside = 1;

struct Options {
  uint64_t mib = 1024;
  int rounds = 5;
  std::vector<int> percents = {0, 5, 25, 100};
  std::vector<std::string> only = {"copy", "cut"};

  uint64_t bytes() const { return mib << 20; }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Best(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

// Whoever is first in one round is not in the next.
size_t InTurn(size_t i, int round, size_t count) { return (i + static_cast<size_t>(round) * 5) % count; }

// One way to take an image of the victim. A new one for each victim.
class Way {
 public:
  Way(Victim* victim, const Source* source, const Room* to) : victim_(*victim), source_(*source), to_(*to) {}
  virtual ~Way() = default;

  virtual absl::Status SetUp() { return absl::OkStatus(); }
  // Beside a pass of the victim, before the image is taken.
  virtual bool CopiesAhead() const { return false; }
  virtual absl::Status CopyAhead() { return absl::OkStatus(); }
  // Takes the image: seconds in which the victim stands still.
  virtual absl::StatusOr<double> Freeze() = 0;
  // Beside the victim's next pass; then all is in the room.
  virtual absl::Status CopyRest() { return absl::OkStatus(); }

 protected:
  absl::StatusOr<double> Stopped(const std::function<absl::Status()>& work) {
    Stopwatch watch;
    RK_RETURN_IF_ERROR(victim_.Stop());
    const absl::Status status = work();
    victim_.Go();
    const double seconds = watch.seconds();
    RK_RETURN_IF_ERROR(status);
    return seconds;
  }

  Victim& victim_;
  const Source& source_;
  const Room& to_;
};

class CopyWay : public Way {
 public:
  using Way::Way;
  absl::StatusOr<double> Freeze() override {
    return Stopped([this] { return CopyAll(source_, {}, to_); });
  }
};

class CompareWay : public Way {
 public:
  using Way::Way;
  bool CopiesAhead() const override { return true; }
  absl::Status CopyAhead() override { return CopyAll(source_, {kThreadsBeside}, to_); }
  absl::StatusOr<double> Freeze() override {
    return Stopped([this] { return CopyDifferent(source_, {2, kSlice}, to_).status(); });
  }

  static constexpr uint64_t kSlice = 128u << 10;  // two of them fit a core's cache
};

class FingerprintWay : public Way {
 public:
  using Way::Way;
  bool CopiesAhead() const override { return true; }
  absl::Status CopyAhead() override {
    return copy_.Update(source_, {kThreadsBeside, CompareWay::kSlice}, to_).status();
  }
  absl::StatusOr<double> Freeze() override {
    return Stopped([this] { return copy_.Update(source_, {2, CompareWay::kSlice}, to_).status(); });
  }

 private:
  FingerprintedCopy copy_;
};

class TrackedWay : public Way {
 public:
  using Way::Way;
  absl::Status SetUp() override {
    RK_ASSIGN_OR_RETURN(userfaultfd_, victim_.RegisterForWriteProtection(UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                                                                         kWpUnpopulated | kWpAsync));
    return absl::OkStatus();
  }
  bool CopiesAhead() const override { return true; }
  absl::Status CopyAhead() override {
    RK_RETURN_IF_ERROR(TakeWritten(source_).status());
    return CopyAll(source_, {kThreadsBeside}, to_);
  }
  absl::StatusOr<double> Freeze() override {
    return Stopped([this] {
      auto written = TakeWritten(source_);
      return written.ok() ? CopyRanges(source_, {}, *written, to_) : written.status();
    });
  }

 private:
  UniqueFd userfaultfd_;
};

class TwinWay : public Way {
 public:
  using Way::Way;
  absl::StatusOr<double> Freeze() override {
    RK_ASSIGN_OR_RETURN(twin_, victim_.Fork());
    return twin_.seconds;
  }
  absl::Status CopyRest() override {
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, twin_.pid, 0)));
    RK_ASSIGN_OR_RETURN(Source source,
                        Source::Open(Source::By::kVmReadv, twin_.pid, source_.address(), source_.bytes()));
    absl::Status status = CopyAll(source, {kThreadsBeside}, to_);
    SendSignal(pidfd.get(), SIGKILL);
    AwaitExit(pidfd.get());
    return status;
  }

 private:
  Victim::Twin twin_{};
};

template <uint64_t chunk_bytes>
class ProtectWay : public Way {
 public:
  using Way::Way;
  absl::Status SetUp() override {
    RK_ASSIGN_OR_RETURN(userfaultfd_, victim_.RegisterForWriteProtection(UFFD_FEATURE_PAGEFAULT_FLAG_WP));
    copy_ = std::make_unique<CopyBeforeWrite>(source_, userfaultfd_.get(), chunk_bytes, to_);
    return absl::OkStatus();
  }
  absl::StatusOr<double> Freeze() override {
    return Stopped([this] { return copy_->Protect(); });
  }
  absl::Status CopyRest() override { return copy_->Copy(); }

 private:
  UniqueFd userfaultfd_;
  std::unique_ptr<CopyBeforeWrite> copy_;
};

struct NamedWay {
  const char* name;
  std::function<std::unique_ptr<Way>(Victim*, const Source*, const Room*)> make;
};

template <typename W>
NamedWay Named(const char* name) {
  return {name, [](Victim* victim, const Source* source, const Room* to) -> std::unique_ptr<Way> {
            return std::make_unique<W>(victim, source, to);
          }};
}

const std::vector<NamedWay>& Ways() {
  static const auto& ways = *new std::vector<NamedWay>{
      Named<CopyWay>(kToday),
      Named<CompareWay>("copied ahead, compared"),
      Named<FingerprintWay>("copied ahead, fingerprints"),
      Named<TrackedWay>("copied ahead, kernel tracks (async userfaultfd)"),
      Named<TwinWay>("twin (fork)"),
      Named<ProtectWay<64u << 10>>("write-protected, 64 KiB at once"),
      Named<ProtectWay<2u << 20>>("write-protected, 2 MiB at once"),
  };
  return ways;
}

// Seconds.
struct Measured {
  double quiet = 0;  // a pass of which nobody takes an image
  double ahead = 0;  // the pass beside which it copies ahead; as `quiet` if it does not
  double freeze = 0;
  double next = 0;  // the first pass after the image

  double Lost() const { return ahead - quiet + freeze + next - quiet; }
};

class Bench {
 public:
  static absl::StatusOr<Bench> Make(const Options& options) {
    RK_ASSIGN_OR_RETURN(Room to, Room::Make(options.bytes()));
    RK_ASSIGN_OR_RETURN(Room reference, Room::Make(options.bytes()));
    return Bench(options, std::move(to), std::move(reference));
  }

  absl::Status Copies();
  absl::Status Cuts();

 private:
  Bench(const Options& options, Room to, Room reference)
      : options_(options), to_(std::move(to)), reference_(std::move(reference)) {}

  absl::Status Check(const std::string& name) const {
    if (std::memcmp(to_.data(), reference_.data(), options_.bytes()) == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(name, ": what it copied is not what the process had"));
  }
  absl::StatusOr<Measured> Cut(const NamedWay& named, bool huge, int percent);

  const Options options_;
  Room to_, reference_;
};

// One stopped process, copied in many ways.
absl::Status Bench::Copies() {
  struct Copy {
    std::string name;
    Source::By by;
    CopyPlan plan;
  };
  using By = Source::By;
  constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;
  std::vector<Copy> copies;
  auto add = [&copies](const char* what, By by, CopyPlan plan) {
    copies.push_back(
        {absl::StrCat("| ", what, " | ", plan.threads, " | ", FormatBytes(plan.slice_bytes)), by, plan});
  };
  add("process_vm_readv", By::kVmReadv, {});  // what captures do comes first
  for (size_t threads : {1, 2, 4}) {
    for (uint64_t slice : {64 * kKiB, 256 * kKiB, kMiB, 8 * kMiB}) {
      if (threads != 2 || slice != kMiB) add("process_vm_readv", By::kVmReadv, {threads, slice});
    }
  }
  for (size_t threads : {1, 2, 4}) add("pread of /proc/PID/mem", By::kProcMem, {threads, kMiB});
  for (uint64_t slice : {64 * kKiB, 8 * kMiB}) add("pread of /proc/PID/mem", By::kProcMem, {2, slice});
  for (uint64_t slice : {64 * kKiB, 256 * kKiB}) {
    add("process_vm_readv to a buffer, non-temporal stores", By::kVmReadv, {2, slice, true});
  }
  add("bound: memcpy within a process", By::kOwnMemory, {2, kMiB});
  add("bound: the same with non-temporal stores", By::kOwnMemory, {2, 64 * kKiB, true});

  std::map<bool, std::vector<std::vector<double>>> seconds;
  for (int round = 0; round < options_.rounds; ++round) {
    for (bool huge : {false, true}) {
      RK_ASSIGN_OR_RETURN(auto victim, Victim::Start(options_.bytes(), huge));
      RK_ASSIGN_OR_RETURN(Source whole,
                          Source::Open(By::kVmReadv, victim->pid(), victim->address(), options_.bytes()));
      RK_RETURN_IF_ERROR(CopyAll(whole, {}, reference_));
      seconds[huge].resize(copies.size());
      for (size_t turn = 0; turn < copies.size(); ++turn) {
        const size_t i = InTurn(turn, round, copies.size());
        const bool own = copies[i].by == By::kOwnMemory;
        const uint64_t address = own ? reinterpret_cast<uintptr_t>(reference_.data()) : victim->address();
        RK_ASSIGN_OR_RETURN(Source source,
                            Source::Open(copies[i].by, victim->pid(), address, options_.bytes()));
        std::memset(to_.data(), 0, options_.bytes());
        Stopwatch watch;
        RK_RETURN_IF_ERROR(victim->Stop());
        const absl::Status status = CopyAll(source, copies[i].plan, to_);
        victim->Go();
        seconds[huge][i].push_back(watch.seconds());
        RK_RETURN_IF_ERROR(status);
        RK_RETURN_IF_ERROR(Check(copies[i].name));
      }
    }
  }
  std::printf(
      "| read by | threads | slice | 4 KiB pages: to today's | median, ms | best, ms "
      "| huge pages: to today's | median, ms | best, ms |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (size_t i = 0; i < copies.size(); ++i) {
    std::printf("%s", copies[i].name.c_str());
    for (bool huge : {false, true}) {
      std::vector<double> ratios;
      for (size_t round = 0; round < seconds[huge][i].size(); ++round) {
        ratios.push_back(seconds[huge][i][round] / seconds[huge][0][round]);
      }
      std::printf(" | %.2fx | %.0f | %.0f", Median(ratios), Median(seconds[huge][i]) * 1e3,
                  Best(seconds[huge][i]) * 1e3);
    }
    std::printf(" |\n");
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::StatusOr<Measured> Bench::Cut(const NamedWay& named, bool huge, int percent) {
  RK_ASSIGN_OR_RETURN(auto victim, Victim::Start(options_.bytes(), huge));
  RK_ASSIGN_OR_RETURN(Source source,
                      Source::Open(Source::By::kVmReadv, victim->pid(), victim->address(), options_.bytes()));
  Measured measured;
  RK_RETURN_IF_ERROR(victim->Pass(percent).status());
  for (int i = 0; i < 2; ++i) {
    RK_ASSIGN_OR_RETURN(double seconds, victim->Pass(percent));
    measured.quiet += seconds / 2;
  }
  measured.ahead = measured.quiet;
  std::memset(to_.data(), 0, options_.bytes());
  const std::unique_ptr<Way> way = named.make(victim.get(), &source, &to_);
  RK_RETURN_IF_ERROR(way->SetUp());
  if (way->CopiesAhead()) {
    RK_RETURN_IF_ERROR(victim->BeginPass(percent));
    const absl::Status status = way->CopyAhead();
    RK_ASSIGN_OR_RETURN(measured.ahead, victim->EndPass());
    RK_RETURN_IF_ERROR(status);
    RK_RETURN_IF_ERROR(victim->Pass(percent).status());
  }
  RK_RETURN_IF_ERROR(CopyAll(source, {}, reference_));
  // Touched and given back: pages that are copied on a write must not have to come from a virtual machine's
  // host.
  RK_RETURN_IF_ERROR(Room::Make(options_.bytes()).status());
  RK_ASSIGN_OR_RETURN(measured.freeze, way->Freeze());
  RK_RETURN_IF_ERROR(victim->BeginPass(percent));
  const absl::Status status = way->CopyRest();
  RK_ASSIGN_OR_RETURN(measured.next, victim->EndPass());
  RK_RETURN_IF_ERROR(status);
  RK_RETURN_IF_ERROR(Check(named.name));
  return measured;
}

absl::Status Bench::Cuts() {
  using Case = std::pair<bool, int>;  // huge pages, percent that changes
  std::vector<Case> cases;
  for (bool huge : {false, true}) {
    for (int percent : options_.percents) cases.emplace_back(huge, percent);
  }
  std::map<std::string, std::map<Case, std::vector<Measured>>> all;
  std::map<std::string, absl::Status> not_here;
  for (int round = 0; round < options_.rounds; ++round) {
    for (const Case& one : cases) {
      for (size_t turn = 0; turn < Ways().size(); ++turn) {
        const NamedWay& way = Ways()[InTurn(turn, round, Ways().size())];
        if (not_here.contains(way.name)) continue;
        auto measured = Cut(way, one.first, one.second);
        // The kernel does not know what it asks for.
        if (absl::IsInvalidArgument(measured.status())) {
          not_here[way.name] = measured.status();
          continue;
        }
        RK_RETURN_IF_ERROR(measured.status());
        all[way.name][one].push_back(*measured);
      }
    }
    std::fprintf(stderr, "round %d of %d\n", round + 1, options_.rounds);
  }

  auto table = [&](const char* title,
                   const std::function<double(const Measured&, const Measured& today)>& value,
                   const char* format) {
    std::printf("\n%s\n\n| way", title);
    for (const Case& one : cases) std::printf(" | %s, %d %%", one.first ? "huge" : "4 KiB", one.second);
    std::printf(" |\n| ---");
    for (size_t i = 0; i < cases.size(); ++i) std::printf(" | ---");
    std::printf(" |\n");
    for (const NamedWay& way : Ways()) {
      if (not_here.contains(way.name)) continue;
      std::printf("| %s", way.name);
      for (const Case& one : cases) {
        const std::vector<Measured>& rounds = all[way.name][one];
        std::vector<double> values;
        for (size_t i = 0; i < rounds.size(); ++i) values.push_back(value(rounds[i], all[kToday][one][i]));
        std::printf(format, Median(values));
      }
      std::printf(" |\n");
    }
  };
  table(
      "Freeze, times today's", [](auto& m, auto& today) { return m.freeze / today.freeze; }, " | %.2fx");
  table(
      "Freeze, ms", [](auto& m, auto&) { return m.freeze * 1e3; }, " | %.1f");
  table(
      "The pass beside which it copies ahead, times a quiet one",
      [](auto& m, auto&) { return m.ahead / m.quiet; }, " | %.2fx");
  table(
      "The first pass after the image, times a quiet one", [](auto& m, auto&) { return m.next / m.quiet; },
      " | %.2fx");
  table(
      "Lost to one image, times today's", [](auto& m, auto& today) { return m.Lost() / today.Lost(); },
      " | %.2fx");
  table(
      "Lost to one image, ms", [](auto& m, auto&) { return m.Lost() * 1e3; }, " | %.0f");
  table(
      "A quiet pass, ms", [](auto& m, auto&) { return m.quiet * 1e3; }, " | %.0f");
  for (const auto& [name, status] : not_here) {
    std::printf("\nNot on this kernel: %s (%s)\n", name.c_str(), std::string(status.message()).c_str());
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Ways to take an image of a process's memory: how long it stands still, what it loses besides");
  app.add_option("--mib", options.mib, "of memory; a multiple of 8")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--percent", options.percents, "of the pages that change between two images")
      ->capture_default_str()
      ->check(CLI::Range(0, 100));
  app.add_option("--only", options.only)->capture_default_str()->check(CLI::IsMember({"copy", "cut"}));
  CLI11_PARSE(app, argc, argv);
  if (options.mib % 8 != 0) {
    std::fprintf(stderr, "freeze_ways: --mib %lu is not a multiple of 8\n", options.mib);
    return 2;
  }
  auto measure = [&options]() -> absl::Status {
    RK_ASSIGN_OR_RETURN(Bench bench, Bench::Make(options));
    for (const std::string& part : options.only) {
      RK_RETURN_IF_ERROR(part == "copy" ? bench.Copies() : bench.Cuts());
    }
    return absl::OkStatus();
  };
  const absl::Status status = measure();
  if (status.ok()) return 0;
  std::fprintf(stderr, "freeze_ways: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace rekindle::bench

int main(int argc, char** argv) { return rekindle::bench::Main(argc, argv); }
