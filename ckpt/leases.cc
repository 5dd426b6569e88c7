#include "ckpt/leases.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/parallel.h"

namespace rekindle::ckpt {

std::shared_ptr<Leases> Leases::BeginReading() {
  std::shared_ptr<Leases> leases(new Leases());
  const absl::Status begun = CatchNoMoreThreads([&] {
    leases->reader_ = std::thread([raw = leases.get()] { raw->Read(); });
    return absl::OkStatus();
  });
  if (!begun.ok()) leases->Read();
  return leases;
}

Leases::~Leases() { Await(); }

void Leases::Await() {
  std::call_once(joined_, [this] {
    if (reader_.joinable()) reader_.join();
  });
}

bool Leases::Has(dev_t device, uint64_t inode) {
  Await();
  const auto [begin, end] = devices_.equal_range(inode);
  return std::any_of(begin, end,
                     [&](const auto& lease) { return lease.second == device || ::major(device) == 0; });
}

void Leases::Read() { Parse(ReadFile("/proc/locks").value_or("")); }

void Leases::Parse(absl::string_view table) {
  for (absl::string_view line : absl::StrSplit(table, '\n')) {
    // "3: LEASE  ACTIVE    WRITE 1234 fe:00:5310821 0 EOF"
    const std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (f.size() <= 5 || f[1] != "LEASE") continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(f[5], ':');
    uint32_t major_number = 0, minor_number = 0;
    uint64_t inode = 0;
    if (parts.size() == 3 && absl::SimpleHexAtoi(parts[0], &major_number) &&
        absl::SimpleHexAtoi(parts[1], &minor_number) && absl::SimpleAtoi(parts[2], &inode))
      devices_.emplace(inode, ::makedev(major_number, minor_number));
  }
}

}  // namespace rekindle::ckpt
