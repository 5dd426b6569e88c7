#include "restore/image_parts.h"

#include <algorithm>
#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "dedup_store/hashing.h"
#include "rekindle/v1/copy_link.h"

namespace rekindle::restore {
namespace {

using v1::kPartBaseDigits;
using v1::kPartImageDigits;
using v1::kPartPagesDigits;

constexpr absl::string_view kHash = "sha256:";

// Before and behind those that tell how far it goes.
struct Digits {
  std::string before, behind;
};

Digits DigitsOf(absl::string_view image, absl::string_view base) {
  store::Sha256 hash;
  const std::string text = absl::StrCat("rekindle part 1\n", image, "\n", base, "\n");
  hash.Update(text.data(), text.size());
  const std::array<uint8_t, 32> digest = hash.Finish();
  const std::string digits =
      absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
  absl::string_view own = absl::StripPrefix(image, kHash);
  if (own.size() != digits.size()) own = digits;
  return {absl::StrCat(own.substr(0, kPartImageDigits), digits.substr(0, kPartBaseDigits)),
          digits.substr(digits.size() - v1::kCopyLinkDigits)};
}

}  // namespace

std::string OriginOfPart(absl::string_view image, absl::string_view base, uint64_t pages) {
  const Digits digits = DigitsOf(image, base);
  return absl::StrCat(kHash, digits.before,
                      absl::StrFormat("%0*x", static_cast<int>(kPartPagesDigits), pages), digits.behind);
}

uint64_t PagesOfLargestPart(const std::vector<std::string>& origins, absl::string_view image,
                            absl::string_view base, uint64_t all_pages) {
  const std::string before = DigitsOf(image, base).before;
  uint64_t largest = 0;
  for (const std::string& origin : origins) {
    const absl::string_view digits = absl::StripPrefix(origin, kHash);
    uint64_t pages = 0;
    if (digits.size() < v1::kCopyLinkDigits || !absl::StartsWith(digits, before) ||
        !absl::SimpleHexAtoi(digits.substr(before.size(), kPartPagesDigits), &pages) || pages >= all_pages)
      continue;
    largest = std::max(largest, pages);
  }
  return largest;
}

}  // namespace rekindle::restore
