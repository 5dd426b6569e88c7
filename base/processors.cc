#include "base/processors.h"

#include <sched.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr int kMostProcessors = 8192;  // that a kernel can be built for
constexpr size_t kSetBytes = kMostProcessors / 8;

// Of CPU_ALLOC's kind, which CPU_*_S take.
using SetBuffer = std::array<cpu_set_t, kSetBytes / sizeof(cpu_set_t)>;

std::string What(const char* doing, pid_t thread) { return absl::StrCat(doing, " of thread ", thread); }

}  // namespace

std::string FormatProcessors(const Processors& processors) {
  std::string text;
  for (auto at = processors.begin(); at != processors.end();) {
    const int first = *at;
    int last = first;
    while (++at != processors.end() && *at == last + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", first);
    if (last != first) absl::StrAppend(&text, "-", last);
  }
  return text;
}

absl::StatusOr<Processors> ParseProcessors(absl::string_view text) {
  Processors processors;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return processors;
  for (absl::string_view range : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        first < 0 || last < first || last >= kMostProcessors) {
      return absl::InvalidArgumentError(absl::StrCat("'", range, "' is no processor or range of them"));
    }
    for (int number = first; number <= last; ++number) processors.insert(number);
  }
  return processors;
}

absl::StatusOr<Processors> OnlineProcessors() {
  constexpr char kOnline[] = "/sys/devices/system/cpu/online";
  RK_ASSIGN_OR_RETURN(const std::string text, ReadFile(kOnline));
  return ParseProcessors(text);
}

absl::StatusOr<Processors> AffinityOf(pid_t thread) {
  SetBuffer set;
  CPU_ZERO_S(kSetBytes, set.data());
  if (::sched_getaffinity(thread, kSetBytes, set.data()) != 0) {
    return ErrnoStatus(errno, What("reading the processors", thread));
  }
  Processors processors;
  for (int number = 0, left = CPU_COUNT_S(kSetBytes, set.data()); left > 0; ++number) {
    if (!CPU_ISSET_S(number, kSetBytes, set.data())) continue;
    processors.insert(processors.end(), number);
    --left;
  }
  return processors;
}

absl::Status SetAffinity(pid_t thread, const Processors& processors) {
  SetBuffer set;
  CPU_ZERO_S(kSetBytes, set.data());
  for (int number : processors) CPU_SET_S(number, kSetBytes, set.data());
  if (::sched_setaffinity(thread, kSetBytes, set.data()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, What("setting the processors", thread));
}

absl::Status SetAffinityWithinCpuset(pid_t thread, const Processors& processors) {
  // What a thread was bound to can only be replaced by what it is bound to now: by all that there could be.
  SetBuffer all;
  std::memset(all.data(), 0xff, kSetBytes);
  if (::sched_setaffinity(thread, kSetBytes, all.data()) == 0) {
    const absl::StatusOr<Processors> has = AffinityOf(thread);
    if (has.ok() && *has == processors) return absl::OkStatus();
  }
  return SetAffinity(thread, processors);
}

}  // namespace rekindle
