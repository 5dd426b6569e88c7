#include "ckpt/leases.h"

#include <string>
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

bool Leases::Has(uint64_t inode) {
  Await();
  return inodes_.contains(inode);
}

void Leases::Read() {
  const std::string table = ReadFile("/proc/locks").value_or("");
  for (absl::string_view line : absl::StrSplit(table, '\n')) {
    // "3: LEASE  ACTIVE    WRITE 1234 fe:00:5310821 0 EOF"
    const std::vector<absl::string_view> f = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    uint64_t inode = 0;
    if (f.size() > 5 && f[1] == "LEASE" && absl::SimpleAtoi(f[5].substr(f[5].rfind(':') + 1), &inode))
      inodes_.insert(inode);
  }
}

}  // namespace rekindle::ckpt
