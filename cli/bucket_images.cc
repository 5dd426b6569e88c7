#include "cli/bucket_images.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rekindle/v1/copy_link.h"

namespace rekindle::cli {
namespace {

constexpr size_t kIdDigits = 32, kMostLinks = 16;
constexpr absl::string_view kImage = ".image", kJson = ".json", kWhole = "whole";
constexpr absl::string_view kCreatedFormat = "%E4Y%m%dT%H%M%E6SZ";
constexpr size_t kCreatedLength = sizeof("20261127T231500.123456Z") - 1;

std::string StemOf(const BucketImage& image) {
  return absl::StrCat(
      absl::FormatTime(kCreatedFormat, absl::FromUnixNanos(image.created_unix_ns), absl::UTCTimeZone()), "-",
      image.origin, "-", image.base.empty() ? kWhole : image.base, "-", image.tag);
}

bool TakeId(absl::string_view* text, std::string* id) {
  if (text->size() < kIdDigits ||
      !std::all_of(text->begin(), text->begin() + kIdDigits, absl::ascii_isxdigit))
    return false;
  *id = std::string(text->substr(0, kIdDigits));
  text->remove_prefix(kIdDigits);
  return absl::ConsumePrefix(text, "-");
}

std::optional<BucketImage> Parse(absl::string_view stem) {
  BucketImage image;
  absl::Time created;
  std::string error;
  absl::string_view left = stem;
  if (left.size() < kCreatedLength ||
      !absl::ParseTime(kCreatedFormat, left.substr(0, kCreatedLength), &created, &error)) {
    return std::nullopt;
  }
  left.remove_prefix(kCreatedLength);
  image.created_unix_ns = absl::ToUnixNanos(created);
  if (!absl::ConsumePrefix(&left, "-") || !TakeId(&left, &image.origin)) return std::nullopt;
  if (!absl::ConsumePrefix(&left, absl::StrCat(kWhole, "-")) && !TakeId(&left, &image.base))
    return std::nullopt;
  image.tag = std::string(left);
  // Whatever is not written as we write it is somebody else's.
  if (left.empty() || StemOf(image) != stem) return std::nullopt;
  return image;
}

}  // namespace

std::string BucketImage::ImageObject() const { return absl::StrCat(StemOf(*this), kImage); }
std::string BucketImage::JsonObject() const { return absl::StrCat(StemOf(*this), kJson); }

bool IsStrayLink(const BucketImage& image) {
  return image.tag == absl::StrCat(v1::kStrayCopyLinkTag, image.origin);
}

std::string IdOf(absl::string_view origin) {
  absl::ConsumePrefix(&origin, "sha256:");
  return std::string(origin.substr(0, kIdDigits));
}

absl::Time UnfinishedBefore(const std::vector<BucketObject>& objects) {
  constexpr absl::Duration kUnfinishedAfter = absl::Hours(24);
  // By whose clock the times are is not known: ours, or the one that tells the time of what was put just now.
  absl::Time now = absl::InfinitePast();
  for (const BucketObject& object : objects) now = std::max(now, object.written);
  return std::min(now, absl::Now()) - kUnfinishedAfter;
}

BucketImages::BucketImages(const std::vector<BucketObject>& objects) {
  struct Seen {
    std::optional<uint64_t> bytes;
    bool json = false;
    absl::Time written = absl::InfinitePast();
  };
  std::map<std::string, Seen> stems;
  for (const BucketObject& object : objects) {
    absl::string_view name = object.name;
    const bool is_image = absl::ConsumeSuffix(&name, kImage);
    if (!is_image && !absl::ConsumeSuffix(&name, kJson)) continue;
    Seen& seen = stems[std::string(name)];
    if (is_image) seen.bytes = object.bytes;
    if (!is_image) seen.json = true;
    seen.written = std::max(seen.written, object.written);
  }
  for (const auto& [stem, seen] : stems) {
    std::optional<BucketImage> image = Parse(stem);
    if (!image) continue;
    image->bytes = seen.bytes.value_or(0);
    image->written = seen.written;
    (seen.bytes && seen.json ? complete_ : incomplete_).push_back(*std::move(image));
  }
  std::stable_sort(complete_.begin(), complete_.end(), [](const BucketImage& a, const BucketImage& b) {
    return a.created_unix_ns > b.created_unix_ns;
  });
  for (size_t i = 0; i < complete_.size(); ++i) {
    const auto [place, is_first] = by_origin_.try_emplace(complete_[i].origin, i);
    if (!is_first && complete_[i].base.empty() && !complete_[place->second].base.empty()) place->second = i;
  }
  FindChains();
}

// From each image down, as far as nobody has been yet.
void BucketImages::FindChains() {
  has_chain_.resize(complete_.size());
  std::vector<bool> seen(complete_.size());
  std::vector<size_t> way;
  for (const auto& [origin, start] : by_origin_) {
    way.clear();
    bool leads_to_whole = false;
    for (size_t at = start;;) {
      if (seen[at]) {  // or on the way: in a circle
        leads_to_whole = has_chain_[at];
        break;
      }
      seen[at] = true;
      way.push_back(at);
      leads_to_whole = complete_[at].base.empty();
      const auto next = by_origin_.find(complete_[at].base);
      if (next == by_origin_.end()) break;
      at = next->second;
    }
    for (const size_t at : way) has_chain_[at] = leads_to_whole;
  }
}

const BucketImage* BucketImages::Find(absl::string_view id) const {
  const auto found = by_origin_.find(id);
  return found == by_origin_.end() ? nullptr : &complete_[found->second];
}

bool BucketImages::HasChain(absl::string_view id) const {
  const auto found = by_origin_.find(id);
  return found != by_origin_.end() && has_chain_[found->second];
}

std::vector<BucketImage> BucketImages::Chain(absl::string_view id) const {
  std::vector<BucketImage> chain;
  if (!HasChain(id)) return chain;
  for (const BucketImage* link = Find(id);; link = Find(link->base)) {
    chain.push_back(*link);
    if (link->base.empty()) break;
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool BucketImages::Has(absl::string_view id, absl::string_view tag) const {
  const bool named = std::any_of(complete_.begin(), complete_.end(), [&](const BucketImage& image) {
    return image.origin == id && image.tag == tag;
  });
  return named && HasChain(id);
}

const BucketImage* BucketImages::Newest(absl::string_view tag) const {
  for (const BucketImage& image : complete_) {
    const bool is_meant = tag.empty() ? !IsStrayLink(image) : image.tag == tag;
    if (is_meant && HasChain(image.origin)) return &image;
  }
  return nullptr;
}

bool BucketImages::MayBuildUpon(absl::string_view id) const {
  const std::vector<BucketImage> chain = Chain(id);
  // Parts are of the image that follows.
  const auto whole = std::find_if_not(chain.begin(), chain.end(), IsStrayLink);
  if (whole == chain.end()) return false;
  const auto links =
      std::count_if(whole, chain.end(), [](const BucketImage& one) { return !IsStrayLink(one); });
  if (static_cast<size_t>(links) >= kMostLinks) return false;
  uint64_t first = 0, since = 0;
  for (auto image = chain.begin(); image != chain.end(); ++image)
    (image <= whole ? first : since) += image->bytes;
  return since <= first;
}

std::vector<BucketImage> BucketImages::PartsOf(const BucketImage& image) const {
  std::vector<BucketImage> parts;
  if (IsStrayLink(image)) return parts;
  for (const BucketImage* part = Find(image.base); part != nullptr && IsStrayLink(*part);
       part = Find(part->base)) {
    if (parts.size() == complete_.size()) break;  // in a circle
    parts.push_back(*part);
  }
  return parts;
}

uint64_t BucketImages::BytesOf(const BucketImage& image) const {
  uint64_t bytes = image.bytes;
  for (const BucketImage& part : PartsOf(image)) bytes += part.bytes;
  return bytes;
}

std::vector<std::string> BucketImages::Superfluous(
    size_t keep, absl::string_view newest, const std::function<Claim(const BucketImage& image)>& claim,
    absl::Time unfinished_before) const {
  std::vector<size_t> order(complete_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return complete_[i].origin == newest; });
  std::vector<bool> needed(complete_.size());
  const auto need = [&](size_t i) {
    needed[i] = true;
    if (!HasChain(complete_[i].origin)) return;
    for (auto link = by_origin_.find(complete_[i].origin); link != by_origin_.end();
         link = by_origin_.find(complete_[link->second].base)) {
      // What that one builds upon is known to be needed, too.
      if (link->second != i && needed[link->second]) break;
      needed[link->second] = true;
    }
  };
  size_t kept = 0;
  for (const size_t i : order) {
    const BucketImage& image = complete_[i];
    if (IsStrayLink(image)) continue;
    const Claim claimed = claim(image);
    if (claimed == Claim::kGoes) continue;
    if (claimed == Claim::kCounted && (!HasChain(image.origin) || kept++ >= keep)) continue;
    need(i);
  }
  // Parts go with their image; what others build upon may be of one on its way.
  std::set<std::string> parts;
  for (size_t i = 0; i < complete_.size(); ++i) {
    if (needed[i] || claim(complete_[i]) == Claim::kStays) continue;
    for (const BucketImage& part : PartsOf(complete_[i])) parts.insert(part.origin);
  }
  for (size_t i = 0; i < complete_.size(); ++i) {
    const BucketImage& image = complete_[i];
    if (!needed[i] && IsStrayLink(image) && claim(image) == Claim::kStays && !parts.contains(image.origin) &&
        image.written >= unfinished_before)
      need(i);
  }
  std::vector<std::string> markers, images;
  const auto remove = [&](const BucketImage& image) {
    markers.push_back(image.JsonObject());
    images.push_back(image.ImageObject());
  };
  for (size_t i = 0; i < complete_.size(); ++i) {
    if (!needed[i]) remove(complete_[i]);
  }
  for (const BucketImage& image : incomplete_) {
    if (claim(image) != Claim::kStays && image.written < unfinished_before) remove(image);
  }
  markers.insert(markers.end(), images.begin(), images.end());
  return markers;
}

std::vector<std::string> BucketImages::Tags() const {
  std::vector<std::string> tags;
  std::set<std::string> known;
  for (const BucketImage& image : complete_) {
    if (HasChain(image.origin) && !IsStrayLink(image) && known.insert(image.tag).second)
      tags.push_back(image.tag);
  }
  return tags;
}

}  // namespace rekindle::cli
