#include "daemon/restart_points.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/image_labels.h"
#include "base/timeline.h"
#include "daemon/supervised_record.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::daemon {
namespace {

// Of an image. No job comes to it.
constexpr uint64_t kGreatestNumber = uint64_t{1} << 48;

// Nothing: it has none, or one that no job comes to, since labels of what came from elsewhere say what they
// like.
std::optional<uint64_t> NumberOfPoint(const store::ImageInfo& image) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(LabelOf(image.labels, v1::kSupervisedNumberLabel), &number) ||
      number > kGreatestNumber)
    return std::nullopt;
  return number;
}

}  // namespace

uint64_t RestartPoints::NextNumber() {
  record_.set_last_number(record_.last_number() + 1);
  return record_.last_number();
}

void RestartPoints::BeginTaking(std::string image) {
  taking_ = std::move(image);
  taking_number_ = NextNumber();
  taking_frozen_ns_ = 0;
}

void RestartPoints::Add(v1::RestartPoint point, bool silent) {
  if (silent) silent_.insert(point.digest());
  Remove(point.image());  // it may have taken the name of another
  const bool is_own = point.image() == taking_;
  if (is_own && taking_frozen_ns_ != 0) point.set_taken_ns(std::min(point.taken_ns(), taking_frozen_ns_));
  point.set_taken_unix_ns(UnixNanos() - (MonotonicNanos() - point.taken_ns()));
  if (is_own) {
    point.set_number(taking_number_);
  } else if (point.number() == 0) {
    point.set_number(NextNumber());
  }
  ++noted_;
  record_.set_had_points(true);
  if (IsOfLife(point)) record_.set_image_in_life(true);
  *record_.add_points() = std::move(point);
  Sort();
}

void RestartPoints::RanOnFrom(const std::string& image, int64_t monotonic_ns) {
  ran_on_ns_[image] = monotonic_ns;
}

void RestartPoints::Remove(absl::string_view image) {
  ran_on_ns_.erase(std::string(image));
  RemoveIf([image](const v1::RestartPoint& point) { return point.image() == image; });
}

std::vector<std::string> RestartPoints::Find(const std::vector<store::ImageInfo>& images, bool same_boot) {
  std::vector<std::string> found;
  std::map<std::string, std::string> there;  // digests by name
  for (const store::ImageInfo& image : images) there[image.reference] = image.digest;
  RemoveIf([&](const v1::RestartPoint& point) {
    const auto it = there.find(point.image());
    return it == there.end() || (!point.digest().empty() && point.digest() != it->second);
  });
  const std::string label = Start();
  std::set<std::string> known;
  for (v1::RestartPoint& point : *record_.mutable_points()) {
    known.insert(point.image());
    point.set_digest(there[point.image()]);
  }
  for (const store::ImageInfo& image : images) {
    // The daemon may have died between the image and the record.
    const auto it = image.labels.find(v1::kSupervisedLabel);
    if (it == image.labels.end() || it->second != label || image.owner != record_.uid()) continue;
    if (known.contains(image.reference) || v1::IsCopyLink(image.reference, image.labels)) continue;
    found.push_back(image.reference);
    v1::RestartPoint* point = record_.add_points();
    point->set_image(image.reference);
    point->set_digest(image.digest);
    point->set_taken_unix_ns(image.created_unix_ns);
    // When is not known: as one that may hold the beginning of a death.
    if (same_boot) point->set_taken_ns(MonotonicNanos());
    point->set_may_hold_death(true);
    // What came back from elsewhere somebody has named.
    point->set_ours(!image.labels.contains(v1::kOriginLabel) &&
                    !image.labels.contains(v1::kSupervisedAskedLabel));
    const uint64_t number = NumberOfPoint(image).value_or(record_.last_number() + 1);
    point->set_number(number);
    record_.set_last_number(std::max(record_.last_number(), number));
    record_.set_had_points(true);
  }
  Sort();
  return found;
}

void RestartPoints::WasTaken(absl::string_view image, int64_t unix_ns) {
  for (v1::RestartPoint& point : *record_.mutable_points()) {
    if (point.image() == image) point.set_taken_unix_ns(unix_ns);
  }
}

bool RestartPoints::AnyOfLife(int64_t ran_on_until_ns, int64_t ran_on_until_unix_ns) const {
  return std::any_of(record_.points().begin(), record_.points().end(), [&](const v1::RestartPoint& point) {
    return IsOfLife(point) && RanOnBefore(point, ran_on_until_ns, ran_on_until_unix_ns);
  });
}

bool RestartPoints::FromMayHoldDeath() const {
  const std::optional<uint64_t> from = FromNumber();
  return from && std::any_of(record_.points().begin(), record_.points().end(), [&](const auto& point) {
           return point.number() == *from && point.may_hold_death();
         });
}

std::optional<int64_t> RestartPoints::OldestKeptUnixNanos() const {
  std::optional<int64_t> oldest;
  // Others' images may stay for weeks.
  for (const v1::RestartPoint& point : record_.points()) {
    if (point.ours()) oldest = std::min(oldest.value_or(INT64_MAX), point.taken_unix_ns());
  }
  if (!oldest && !record_.points().empty()) oldest = record_.points().rbegin()->taken_unix_ns();
  return oldest;
}

std::optional<supervise::Tried> RestartPoints::Tried() const {
  if (record_.from_image().empty()) return supervise::Tried{0, 0};  // what there is has come later
  size_t newer = 0;
  for (auto point = record_.points().rbegin(); point != record_.points().rend(); ++point, ++newer) {
    if (point->image() == record_.from_image() && point->number() >= record_.from_number())
      return supervise::Tried{newer, newer + 1};
    if (point->number() < record_.from_number()) break;
  }
  if (record_.from_number() == 0) return std::nullopt;  // of an earlier version
  return supervise::Tried{newer, newer};
}

std::optional<uint64_t> RestartPoints::FromNumber() const {
  if (record_.from_image().empty()) return std::nullopt;
  if (record_.from_number() != 0) return record_.from_number();
  for (const v1::RestartPoint& point : record_.points()) {  // of an earlier version
    if (point.image() == record_.from_image()) return point.number();
  }
  return std::nullopt;
}

bool RestartPoints::IsOnWayToDeath(const v1::RestartPoint& point) const {
  const std::optional<uint64_t> from = FromNumber();
  return from && point.number() > *from && !IsOfLife(point);
}

bool RestartPoints::LifeBeganBefore(int64_t ns, int64_t unix_ns) const {
  if (record_.life_began_ns() != 0) return record_.life_began_ns() <= ns;
  return record_.life_began_unix_ns() != 0 && record_.life_began_unix_ns() <= unix_ns;
}

bool RestartPoints::RanOnBefore(const v1::RestartPoint& point, int64_t ns, int64_t unix_ns) const {
  if (point.taken_ns() == 0) return point.taken_unix_ns() <= unix_ns;
  const auto ran_on = ran_on_ns_.find(point.image());
  return std::max(point.taken_ns(), ran_on == ran_on_ns_.end() ? 0 : ran_on->second) <= ns;
}

void RestartPoints::NoteSound(int64_t sound_before_ns, int64_t sound_before_unix_ns, bool is_over) {
  const std::optional<uint64_t> from = FromNumber();
  const bool from_is_sound = LifeBeganBefore(sound_before_ns, sound_before_unix_ns);
  for (v1::RestartPoint& point : *record_.mutable_points()) {
    if (IsOnWayToDeath(point)) {
      point.set_may_hold_death(true);
    } else if (point.number() == from && from_is_sound) {
      point.clear_may_hold_death();
    } else if (IsOfLife(point) && is_over) {
      point.set_may_hold_death(!RanOnBefore(point, sound_before_ns, sound_before_unix_ns));
    }
  }
  sound_before_ns_ = sound_before_ns;
  const bool has_image =
      std::any_of(record_.points().begin(), record_.points().end(), [&](const v1::RestartPoint& point) {
        return IsOfLife(point) && (is_over || IsProven(point, sound_before_ns));
      });
  if (!has_image || !HasGoneBack()) return;
  record_.set_sound(SoundText(SoundUntil(*from)));
  record_.set_sound_since(record_.numbers_before() + 1);
}

std::string RestartPoints::Start() const { return absl::StrCat(record_.submitted_unix_ns()); }

uint64_t RestartPoints::SoundSince() const {
  if (record_.sound_since() != 0) return record_.sound_since();
  const bool is_first =
      record_.first_submitted_unix_ns() == 0 && record_.last_number() >> v1::kBitsOfNumberInStart == 0;
  return is_first ? 1 : NumbersBeforeStart(record_) + 1;
}

bool RestartPoints::HasGoneBack() const {
  const std::optional<uint64_t> from = FromNumber();
  return from && *from < record_.numbers_before() && SoundSince() <= record_.numbers_before();
}

std::vector<SoundStretch> RestartPoints::SoundUntil(uint64_t last) const {
  std::vector<SoundStretch> sound = ParseSound(record_.sound());
  if (const std::optional<uint64_t> from = FromNumber()) CutOffAfter(Start(), *from, &sound);
  SoundStretch own{Start(), SoundSince()};
  for (const v1::RestartPoint& point : record_.points()) {
    if (point.number() <= last && IsProven(point, sound_before_ns_)) own.last = point.number();
  }
  if (own.first <= own.last) sound.insert(sound.begin(), std::move(own));
  return sound;
}

std::string RestartPoints::Sound() const {
  return SoundText(SoundUntil(HasGoneBack() ? *FromNumber() : UINT64_MAX));
}

bool RestartPoints::IsProven(const v1::RestartPoint& point, int64_t sound_before_ns) const {
  // Of before this boot: what was noted when its life ended counts.
  const bool is_of_before_boot = point.taken_ns() == 0;
  if (!is_of_before_boot && !RanOnBefore(point, sound_before_ns, 0)) return false;
  return (IsOfLife(point) && !is_of_before_boot) || (!point.may_hold_death() && !IsOnWayToDeath(point));
}

bool RestartPoints::MayBeProven(const v1::RestartPoint& point) const {
  return IsOfLife(point) || !point.may_hold_death() || point.number() == FromNumber();
}

std::vector<v1::RestartPoint> RestartPoints::Superfluous(bool make_room, int64_t sound_before_ns,
                                                         const std::vector<std::string>& damaged) const {
  std::vector<v1::RestartPoint> old;
  const size_t keep = make_room ? 1 : record_.policy().keep_images();
  size_t ours = 0;
  // What may hold a death or a hang already does not push out what does not. While none is old enough for
  // that, the oldest one is the best there is. The next one to be that has to get old enough, however soon
  // others come.
  std::optional<int> to_go_back_to, to_be_proven;
  for (int i = 0; i < record_.points_size(); ++i) {
    const v1::RestartPoint& point = record_.points(i);
    const bool is_whole = !std::binary_search(damaged.begin(), damaged.end(), point.image());
    if (is_whole && IsProven(point, sound_before_ns)) {
      to_go_back_to = i;
      to_be_proven.reset();
    } else if (is_whole && !IsOnWayToDeath(point)) {
      if (!to_go_back_to) to_go_back_to = i;
      if (!to_be_proven && MayBeProven(point)) to_be_proven = i;
    }
    if (!point.ours()) continue;
    if (record_.image_in_life() && IsOnWayToDeath(point)) {
      old.push_back(point);
    } else {
      ++ours;
    }
  }
  // The newest is what all of this is for.
  for (int i = 0; i + 1 < record_.points_size() && ours > keep; ++i) {
    const v1::RestartPoint& point = record_.points(i);
    const bool goes = record_.image_in_life() && IsOnWayToDeath(point);
    if (i == to_go_back_to || i == to_be_proven || !point.ours() || goes) continue;
    old.push_back(point);
    --ours;
  }
  return old;
}

StartsBefore RestartPoints::StartsInPast(const std::vector<store::ImageInfo>& images) const {
  if (!record_.ancestors().empty()) return ParseAncestors(record_.ancestors());
  // As earlier versions left it.
  const uint64_t before = NumbersBeforeStart(record_);
  const auto first =
      std::find_if(record_.points().begin(), record_.points().end(),
                   [before](const v1::RestartPoint& point) { return point.number() <= before; });
  if (first == record_.points().end()) return {};
  const auto begun_with = std::find_if(images.begin(), images.end(), [&](const store::ImageInfo& image) {
    return image.reference == first->image() && image.digest == first->digest();
  });
  if (begun_with == images.end()) return {};
  const std::string start = LabelOf(begun_with->labels, v1::kSupervisedLabel);
  const std::optional<uint64_t> last = NumberOfPoint(*begun_with);
  if (start.empty() || !last) return {};
  return {{start, *last}};
}

std::vector<v1::RestartPoint> RestartPoints::OfEarlierStarts(
    const std::vector<store::ImageInfo>& images) const {
  std::vector<v1::RestartPoint> earlier;
  const StartsBefore past = StartsInPast(images);
  if (past.empty()) return earlier;
  const uint64_t before = NumbersBeforeStart(record_);
  std::set<std::string> points;
  for (const v1::RestartPoint& point : record_.points()) points.insert(point.image());
  // The store has them in the order in which they came.
  for (auto image = images.rbegin(); image != images.rend(); ++image) {
    const auto start = past.find(LabelOf(image->labels, v1::kSupervisedLabel));
    const std::optional<uint64_t> number = NumberOfPoint(*image);
    if (start == past.end() || !number || *number > std::min(start->second, before) ||
        points.contains(image->reference) || !MayRemoveOfEarlierStart(*image, record_))
      continue;
    v1::RestartPoint& point = earlier.emplace_back();
    point.set_image(image->reference);
    point.set_digest(image->digest);
    point.set_number(*number);
  }
  std::stable_sort(earlier.begin(), earlier.end(), [](const v1::RestartPoint& a, const v1::RestartPoint& b) {
    return a.number() < b.number();
  });
  return earlier;
}

std::vector<v1::RestartPoint> RestartPoints::BeyondKept(std::vector<v1::RestartPoint> of_earlier_starts,
                                                        const std::vector<v1::RestartPoint>& going,
                                                        size_t at_least) const {
  std::set<std::string> gone;
  for (const v1::RestartPoint& point : going) gone.insert(point.image());
  // All points are newer.
  size_t kept = record_.policy().keep_images();
  for (const v1::RestartPoint& point : record_.points()) {
    if (kept > 0 && point.ours() && !gone.contains(point.image())) --kept;
  }
  kept = std::max(kept, at_least);
  of_earlier_starts.resize(of_earlier_starts.size() - std::min(of_earlier_starts.size(), kept));
  return of_earlier_starts;
}

std::string RestartPoints::SoundOfEarlierStarts(const std::vector<v1::RestartPoint>& of_earlier_starts,
                                                const std::vector<store::ImageInfo>& images) const {
  std::set<std::string> earlier;
  for (const v1::RestartPoint& point : of_earlier_starts) earlier.insert(point.image());
  std::vector<NumberInStart> numbers(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    if (!earlier.contains(images[i].reference)) continue;
    numbers[i] = {LabelOf(images[i].labels, v1::kSupervisedLabel), NumberOfPoint(images[i]).value_or(0)};
  }
  const std::optional<size_t> newest = NewestSound(ParseSound(record_.sound()), numbers);
  return newest ? images[*newest].reference : "";
}

bool RestartPoints::HasSoundOwn(const std::vector<store::ImageInfo>& images, int64_t sound_before_ns) const {
  std::set<std::pair<std::string, std::string>> there;
  for (const store::ImageInfo& image : images) there.emplace(image.reference, image.digest);
  const uint64_t before = NumbersBeforeStart(record_);
  return std::any_of(record_.points().begin(), record_.points().end(), [&](const v1::RestartPoint& point) {
    return point.number() > before && IsProven(point, sound_before_ns) &&
           there.contains({point.image(), point.digest()});
  });
}

std::vector<v1::RestartPoint> RestartPoints::OfHang(int64_t hung_since_ns) const {
  std::vector<v1::RestartPoint> hanging;
  for (const v1::RestartPoint& point : record_.points()) {
    if (point.ours() && point.taken_ns() > hung_since_ns) hanging.push_back(point);
  }
  // Better one that may hang than none: the oldest, which is the nearest to where it still got further. The
  // others hold no more work than that one, and would cost an attempt each.
  if (hanging.size() == static_cast<size_t>(record_.points_size()) && !hanging.empty())
    hanging.erase(hanging.begin());
  return hanging;
}

void RestartPoints::RemoveIf(const std::function<bool(const v1::RestartPoint&)>& goes) {
  auto* points = record_.mutable_points();
  points->erase(std::remove_if(points->begin(), points->end(), goes), points->end());
}

void RestartPoints::Sort() {
  // Those of versions that gave no numbers come first, in the order that they have.
  std::stable_sort(
      record_.mutable_points()->begin(), record_.mutable_points()->end(),
      [](const v1::RestartPoint& a, const v1::RestartPoint& b) { return a.number() < b.number(); });
}

}  // namespace rekindle::daemon
