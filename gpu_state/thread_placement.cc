#include "gpu_state/thread_placement.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle::gpu {
namespace {

constexpr size_t kBitsOfWord = 8 * sizeof(unsigned long);
// More than kernels are made for: 8192 processors, 1024 nodes.
constexpr size_t kWordsOfProcessors = 8192 / kBitsOfWord, kWordsOfNodes = 1024 / kBitsOfWord;

// "0-3,8"; nothing where it is none.
std::vector<unsigned long> MaskOf(absl::string_view list) {
  std::vector<unsigned long> mask(kWordsOfNodes);
  for (const absl::string_view range : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, '-');
    uint32_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(ends.second.empty() ? ends.first : ends.second, &last) ||
        last >= kWordsOfNodes * kBitsOfWord) {
      return {};
    }
    for (uint32_t node = first; node <= last; ++node) mask[node / kBitsOfWord] |= 1ul << node % kBitsOfWord;
  }
  return mask;
}

// Linux asks for one bit more than there are in the mask.
long SetPolicy(const MemoryPolicy& policy) {
  return ::syscall(SYS_set_mempolicy, policy.mode, policy.nodes.empty() ? nullptr : policy.nodes.data(),
                   policy.nodes.size() * kBitsOfWord + 1);
}

absl::string_view FirstLineOf(absl::string_view text) { return text.substr(0, text.find('\n')); }

std::string NodesAllowed(absl::string_view task) {
  return StatusField(ReadFile(absl::StrCat("/proc/", task, "/status")).value_or(""), "Mems_allowed_list");
}

}  // namespace

MemoryPolicy PolicyOfLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
  if (words.size() < 2) return {};
  // "interleave=static:0-1"; "prefer (many):0" has a space in it.
  const bool many = absl::StartsWith(words[1], "prefer") && words.size() > 2 && words[2][0] == '(';
  const std::vector<absl::string_view> parts = absl::StrSplit(many ? words[2] : words[1], ':');
  const std::vector<absl::string_view> name = absl::StrSplit(many ? words[1] : parts[0], '=');
  static constexpr std::array<std::pair<absl::string_view, int>, 3> kModes = {
      {{"bind", MPOL_BIND}, {"interleave", MPOL_INTERLEAVE}, {"prefer", MPOL_PREFERRED}}};
  for (const auto& [mode, number] : kModes) {
    if (name[0] != mode || parts.size() < 2) continue;
    MemoryPolicy policy{many ? MPOL_PREFERRED_MANY : number, MaskOf(parts.back())};
    if (policy.nodes.empty()) return {};
    return policy;
  }
  return {};
}

ThreadPlacement ThreadPlacement::Of(pid_t process, pid_t thread) {
  ThreadPlacement placement;
  std::string task = absl::StrCat(process, "/task/", thread);
  // In a container it has another number there.
  if (::access(absl::StrCat("/proc/", task).c_str(), F_OK) != 0) {
    thread = process;
    task = absl::StrCat(process, "/task/", process);
  }
  placement.processors_.resize(kWordsOfProcessors);
  // Not the C library's, which has a fixed size.
  const long bytes = ::syscall(SYS_sched_getaffinity, thread, kWordsOfProcessors * sizeof(unsigned long),
                               placement.processors_.data());
  placement.processors_.resize(bytes > 0 ? static_cast<size_t>(bytes) / sizeof(unsigned long) : 0);
  // A short read: for more than the first area the kernel would count all pages that the process has there.
  char line[128];
  if (const auto maps = OpenFile(absl::StrCat("/proc/", task, "/numa_maps"), O_RDONLY); maps.ok()) {
    const ssize_t n = ::read(maps->get(), line, sizeof line);
    if (n > 0) placement.policy_ = PolicyOfLine(FirstLineOf({line, static_cast<size_t>(n)}));
  }
  // To which its control group keeps it, and not us.
  const std::string nodes = NodesAllowed(task);
  size_t count = 0;
  for (const unsigned long word : MaskOf(nodes)) count += static_cast<size_t>(std::popcount(word));
  placement.memory_nodes_ = std::max<size_t>(count, 1);
  if (placement.policy_ == MemoryPolicy() && !nodes.empty() && nodes != NodesAllowed("self")) {
    placement.policy_ = MemoryPolicy{MPOL_BIND, MaskOf(nodes)};
    if (placement.policy_->nodes.empty()) placement.policy_.reset();
  }
  return placement;
}

size_t ThreadPlacement::processors() const {
  size_t count = 0;
  for (const unsigned long word : processors_) count += static_cast<size_t>(std::popcount(word));
  return count;
}

ThreadPlacement::Adopted::Adopted(const ThreadPlacement& placement) {
  if (!placement.processors_.empty()) {
    own_processors_.resize(kWordsOfProcessors);
    const long bytes = ::syscall(SYS_sched_getaffinity, 0, kWordsOfProcessors * sizeof(unsigned long),
                                 own_processors_.data());
    own_processors_.resize(bytes > 0 ? static_cast<size_t>(bytes) / sizeof(unsigned long) : 0);
    (void)::syscall(SYS_sched_setaffinity, 0, placement.processors_.size() * sizeof(unsigned long),
                    placement.processors_.data());
  }
  if (!placement.policy_) return;
  own_policy_.nodes.resize(kWordsOfNodes);
  if (::syscall(SYS_get_mempolicy, &own_policy_.mode, own_policy_.nodes.data(), kWordsOfNodes * kBitsOfWord,
                nullptr, 0) != 0) {
    return;
  }
  policy_changed_ = SetPolicy(*placement.policy_) == 0;
}

ThreadPlacement::Adopted::~Adopted() {
  if (policy_changed_) {
    // With a mask, though an empty one, the kernel takes neither.
    if (own_policy_.mode == MPOL_DEFAULT || own_policy_.mode == MPOL_LOCAL) own_policy_.nodes.clear();
    (void)SetPolicy(own_policy_);
  }
  if (!own_processors_.empty()) {
    (void)::syscall(SYS_sched_setaffinity, 0, own_processors_.size() * sizeof(unsigned long),
                    own_processors_.data());
  }
}

}  // namespace rekindle::gpu
