#include "daemon/supervised_record.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/file_patterns.h"
#include "base/image_labels.h"
#include "base/image_reference.h"
#include "base/job_descent.h"
#include "base/machine.h"
#include "base/message_text.h"
#include "base/record_file.h"
#include "base/status.h"
#include "daemon/job_registry.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/image_layout.h"
#include "rekindle/v1/supervised_labels.h"

namespace rekindle::daemon {
namespace {

constexpr uint32_t kSupervisedFormat = 1;
constexpr absl::string_view kSupervisedSuffix = ".json";

std::string FirstImagePath(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/.", name, ".from");
}

std::string LeftLifePath(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/.", name, ".left");
}

absl::Status CheckNumber(double value, absl::string_view what, double most) {
  if (std::isfinite(value) && value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, ": give a number from 0 to ", most));
}

}  // namespace

std::string SupervisedDirectory(absl::string_view store) { return absl::StrCat(store, "/supervised"); }

std::string SupervisedRecordPath(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name, kSupervisedSuffix);
}

absl::Status MakeSupervisedDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("making folder ", directory));
}

absl::Status WriteSupervisedRecord(const std::string& directory, const v1::SupervisedJobRecord& record) {
  RK_RETURN_IF_ERROR(MakeSupervisedDirectory(directory));
  v1::SupervisedJobRecord file = record;
  file.set_format(kSupervisedFormat);
  MakeText(&file);
  const absl::Status written = WriteRecordFile(SupervisedRecordPath(directory, record.name()), file);
  return Annotate(
      absl::IsResourceExhausted(written)
          ? WithMessage(written,
                        absl::StrCat(written.message(), ", or remove images (`rekindle rm`, `rekindle gc`)"))
          : written,
      absl::StrCat("recording job '", record.name(), "'"));
}

absl::Status RemoveSupervisedRecord(const std::string& directory, absl::string_view name) {
  RK_RETURN_IF_ERROR(RemoveTree(SupervisedRecordPath(directory, name)));
  RK_RETURN_IF_ERROR(RemoveLeftLife(directory, name));
  return RemoveFirstImage(directory, name);
}

absl::Status WriteFirstImage(const std::string& directory, absl::string_view name,
                             const v1::RestartPoint& image) {
  RK_RETURN_IF_ERROR(MakeSupervisedDirectory(directory));
  return Annotate(WriteRecordFile(FirstImagePath(directory, name), image),
                  absl::StrCat("recording what job '", name, "' is started from"));
}

absl::Status RemoveFirstImage(const std::string& directory, absl::string_view name) {
  return RemoveTree(FirstImagePath(directory, name));
}

absl::StatusOr<v1::RestartPoint> ReadFirstImage(const std::string& directory, absl::string_view name) {
  const std::string path = FirstImagePath(directory, name);
  RK_ASSIGN_OR_RETURN(auto image, ReadRecordFile<v1::RestartPoint>(path));
  if (image.digest().empty()) return UnusableRecord(path, "it names no image");
  return image;
}

EndedRecord ReadEndedRecord(const std::string& directory, absl::string_view name) {
  EndedRecord before;
  absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory, name);
  if (!record.ok() || !record->ended()) return before;
  before.record = *std::move(record);
  if (absl::StatusOr<v1::RestartPoint> first = ReadFirstImage(directory, name); first.ok())
    before.first_image = *std::move(first);
  return before;
}

absl::Status PutBackEndedRecord(const std::string& directory, absl::string_view name,
                                const EndedRecord& before) {
  if (!before.record) return RemoveSupervisedRecord(directory, name);
  RK_RETURN_IF_ERROR(WriteSupervisedRecord(directory, *before.record));
  RK_RETURN_IF_ERROR(RemoveLeftLife(directory, name));
  return before.first_image ? WriteFirstImage(directory, name, *before.first_image)
                            : RemoveFirstImage(directory, name);
}

absl::Status WriteLeftLife(const std::string& directory, const v1::SupervisedJobRecord& record) {
  v1::LeftLife life;
  life.set_pid(record.pid());
  life.set_start_ticks(record.start_ticks());
  life.set_boot_id(record.boot_id());
  return Annotate(WriteRecordFile(LeftLifePath(directory, record.name()), life, RecordOutlives::kProcess),
                  absl::StrCat("recording that job '", record.name(), "' is left"));
}

absl::Status RemoveLeftLife(const std::string& directory, absl::string_view name) {
  return RemoveTree(LeftLifePath(directory, name));
}

bool IsLeftLife(const std::string& directory, const v1::SupervisedJobRecord& record) {
  const auto life = ReadRecordFile<v1::LeftLife>(LeftLifePath(directory, record.name()));
  return life.ok() && life->pid() == record.pid() && life->start_ticks() == record.start_ticks() &&
         life->boot_id() == record.boot_id();
}

absl::StatusOr<v1::SupervisedJobRecord> ReadSupervisedRecord(const std::string& directory,
                                                             absl::string_view name) {
  const std::string path = SupervisedRecordPath(directory, name);
  RK_ASSIGN_OR_RETURN(auto record, ReadRecordFile<v1::SupervisedJobRecord>(path, kSupervisedFormat));
  if (record.name() != name || record.argv().empty())
    return UnusableRecord(path, "it does not describe the job of its name");
  return record;
}

absl::StatusOr<std::vector<std::string>> ListSupervisedRecords(const std::string& directory) {
  absl::StatusOr<std::vector<std::string>> files = ListDirectory(directory);
  if (absl::IsNotFound(files.status())) files.emplace();
  RK_RETURN_IF_ERROR(Annotate(files.status(), "listing the records of supervised jobs"));
  std::vector<std::string> names;
  for (const std::string& file : *files) {
    absl::string_view name = file;
    if (name[0] != '.' && absl::ConsumeSuffix(&name, kSupervisedSuffix)) names.emplace_back(name);
  }
  return names;
}

absl::Status CheckIsOfThisMachine(const std::string& directory, const v1::SupervisedJobRecord& record) {
  if (!IsOtherMachine(record.machine())) return absl::OkStatus();
  const std::string newest = record.points().empty() ? "" : record.points().rbegin()->image();
  return absl::FailedPreconditionError(
      absl::StrCat("supervised job '", record.name(), "' is the machine ", record.host(),
                   "'s, which shares this store: see to it there. "
                   "If that machine is gone for good, remove ",
                   SupervisedRecordPath(directory, record.name()),
                   newest.empty() ? ""
                                  : absl::StrCat("; then 'rekindle run --from ", newest,
                                                 " --every 5m --restarts 10' goes on from its last image")));
}

std::string NameOfImages(const v1::SupervisedJobRecord& record) {
  const std::string& given = record.policy().image_name();
  return given.empty() ? ImageNameOf(record.name()) : given;
}

absl::Status CheckImagesNameIsFree(const std::string& directory, const v1::SupervisedJobRecord& record) {
  const std::string images = NameOfImages(record);
  for (const std::string& name : ListSupervisedRecords(directory).value_or(std::vector<std::string>())) {
    if (name == record.name()) continue;
    const absl::StatusOr<v1::SupervisedJobRecord> other = ReadSupervisedRecord(directory, name);
    if (!other.ok() || other->ended() || other->uid() != record.uid() || NameOfImages(*other) != images)
      continue;
    return absl::AlreadyExistsError(
        absl::StrCat("the images of job '", name, "', which has not ended, are called ", images,
                     " already: give this one another --image-name, or end that one first"));
  }
  return absl::OkStatus();
}

uint64_t NumbersBeforeStart(const v1::SupervisedJobRecord& record) {
  const uint64_t starts = record.last_number() >> v1::kBitsOfNumberInStart;
  // Of earlier versions: the image that it has begun with is the first.
  return starts == 0 ? 1 : starts << v1::kBitsOfNumberInStart;
}

void GoOnFromStart(const store::ImageInfo& image, v1::SupervisedJobRecord* record, v1::RestartPoint* first) {
  int64_t submitted = 0;
  for (const char* label : {v1::kSupervisedFirstLabel, v1::kSupervisedLabel}) {
    const auto said = image.labels.find(label);
    if (said != image.labels.end() && absl::SimpleAtoi(said->second, &submitted)) break;
  }
  record->set_first_submitted_unix_ns(submitted);
  // Labels of what came from elsewhere say what they like.
  constexpr uint64_t kMostStarts = 1u << 15;
  uint64_t number = 0;
  const auto said = image.labels.find(v1::kSupervisedNumberLabel);
  if (said == image.labels.end() || !absl::SimpleAtoi(said->second, &number) ||
      number >> v1::kBitsOfNumberInStart >= kMostStarts)
    number = 0;
  first->set_number(std::max<uint64_t>(number, 1));
  record->set_ancestors(number == 0 ? ""
                                    : AncestorsOfNext(LabelOf(image.labels, v1::kSupervisedLabel), number,
                                                      LabelOf(image.labels, v1::kSupervisedAncestorsLabel)));
  record->set_sound(number == 0 ? ""
                                : SoundText(ParseSound(LabelOf(image.labels, v1::kSupervisedSoundLabel))));
  record->set_last_number(((number >> v1::kBitsOfNumberInStart) + 1) << v1::kBitsOfNumberInStart);
}

void NoteOtherWays(const store::ImageInfo& image, const std::vector<store::ImageInfo>& known,
                   v1::SupervisedJobRecord* record) {
  StartsBefore ways;
  for (const store::ImageInfo& one : known) {
    uint64_t number = 0;
    if (absl::SimpleAtoi(LabelOf(one.labels, v1::kSupervisedNumberLabel), &number))
      AddStarts({{LabelOf(one.labels, v1::kSupervisedLabel), number}}, &ways);
    for (const char* label : {v1::kSupervisedAncestorsLabel, v1::kSupervisedSeenLabel})
      AddStarts(ParseAncestors(LabelOf(one.labels, label)), &ways);
  }
  record->set_seen(
      SeenOfNext(std::move(ways), record->ancestors(), LabelOf(image.labels, v1::kSupervisedSeenLabel)));
}

bool MayRemoveOfEarlierStart(const store::ImageInfo& image, const v1::SupervisedJobRecord& record) {
  const auto label = [&](const char* key) { return LabelOf(image.labels, key); };
  const std::string start = label(v1::kSupervisedLabel), first = label(v1::kSupervisedFirstLabel);
  if (image.owner != record.uid() || NameOfReference(image.reference) != NameOfImages(record)) return false;
  if (start.empty() || start == absl::StrCat(record.submitted_unix_ns()) ||
      (first.empty() ? start : first) != absl::StrCat(record.first_submitted_unix_ns()) ||
      label(v1::kJobNameLabel) != record.name())
    return false;
  // Somebody has asked for it, has brought it here, or it is a group's, too.
  for (const char* key : {v1::kSupervisedAskedLabel, v1::kOriginLabel, v1::kGroupIdLabel}) {
    if (image.labels.contains(key)) return false;
  }
  return !v1::IsCopyLink(image.reference, image.labels);
}

std::string ExactNameOf(const v1::RestartPoint& point) {
  if (point.digest().empty()) return point.image();
  return absl::StrCat(NameOfReference(point.image()), "@", point.digest());
}

supervise::RestartState RestartStateOf(const v1::SupervisedJobRecord& record) {
  const v1::RestartMemory& memory = record.restarts();
  supervise::RestartState state;
  state.attempts = memory.attempts();
  state.in_a_row = memory.in_a_row();
  state.images_back = memory.images_back();
  state.from_beginning = memory.from_beginning();
  state.blamed = memory.blamed();
  state.has_last = memory.has_last();
  state.last.kind = memory.last_kind() <= static_cast<uint32_t>(supervise::Death::Kind::kDaemonLeft)
                        ? static_cast<supervise::Death::Kind>(memory.last_kind())
                        : supervise::Death::Kind::kUnknown;
  state.last.code = memory.last_code();
  state.last.lived_seconds = memory.last_lived_seconds();
  state.last.image_taken = memory.last_image_taken();
  state.last.progressed = memory.last_progressed();
  return state;
}

void SetRestartState(const supervise::RestartState& state, v1::SupervisedJobRecord* record) {
  v1::RestartMemory* memory = record->mutable_restarts();
  memory->set_attempts(state.attempts);
  memory->set_in_a_row(state.in_a_row);
  memory->set_images_back(state.images_back);
  memory->set_from_beginning(state.from_beginning);
  memory->set_blamed(state.blamed);
  memory->set_has_last(state.has_last);
  memory->set_last_kind(static_cast<uint32_t>(state.last.kind));
  memory->set_last_code(state.last.code);
  memory->set_last_lived_seconds(state.last.lived_seconds);
  memory->set_last_image_taken(state.last.image_taken);
  memory->set_last_progressed(state.last.progressed);
}

supervise::IntervalState IntervalStateOf(const v1::SupervisedJobRecord& record) {
  supervise::IntervalState state;
  state.cost_seconds = record.interval().cost_seconds();
  state.images = record.interval().images();
  state.failures = record.interval().failures();
  state.run_seconds = record.interval().run_seconds();
  return state;
}

void SetIntervalState(const supervise::IntervalState& state, v1::SupervisedJobRecord* record) {
  v1::IntervalMemory* memory = record->mutable_interval();
  memory->set_cost_seconds(state.cost_seconds);
  memory->set_images(state.images);
  memory->set_failures(state.failures);
  memory->set_run_seconds(state.run_seconds);
}

supervise::RestartOptions RestartOptionsOf(const v1::Supervision& policy) {
  supervise::RestartOptions options;
  options.restarts = policy.restarts();
  options.backoff_seconds = policy.backoff_seconds();
  options.backoff_limit_seconds = policy.backoff_limit_seconds();
  return options;
}

supervise::IntervalOptions IntervalOptionsOf(const v1::Supervision& policy) {
  supervise::IntervalOptions options;
  if (!policy.every_auto()) options.fixed_seconds = policy.every_seconds();
  options.overhead_budget = policy.overhead_budget();
  return options;
}

absl::Status CompletePolicy(v1::Supervision* policy) {
  constexpr double kYear = 366.0 * 86400;
  RK_RETURN_IF_ERROR(CheckNumber(policy->every_seconds(), "the interval", kYear));
  RK_RETURN_IF_ERROR(CheckNumber(policy->overhead_budget(), "the overhead budget", 1));
  RK_RETURN_IF_ERROR(CheckNumber(policy->backoff_seconds(), "the back-off", kYear));
  RK_RETURN_IF_ERROR(CheckNumber(policy->backoff_limit_seconds(), "the longest back-off", kYear));
  RK_RETURN_IF_ERROR(CheckNumber(policy->hang_seconds(), "the time without progress", kYear));
  RK_RETURN_IF_ERROR(CheckNumber(policy->retry_seconds(), "the time to try again", kYear));
  if (policy->every_auto() && policy->every_seconds() > 0)
    return absl::InvalidArgumentError("the interval is either chosen or given: not both");
  if (policy->rollback().dry_run())
    return absl::InvalidArgumentError("a dry run of rolling files back is for 'rekindle restore'");
  for (const std::string& path : policy->rollback().ignore_paths()) {
    if (!absl::StartsWith(path, "/"))
      return absl::InvalidArgumentError(absl::StrCat("the path to leave alone '", path, "' is not absolute"));
  }
  RK_RETURN_IF_ERROR(CheckFilePatterns(policy->track_paths()));
  for (const std::string& folder : policy->keep_removed()) {
    RK_RETURN_IF_ERROR(CheckFilePattern(folder));
    if (folder == "/" || folder == "/tmp" || folder == "/var/tmp" ||
        folder.find_first_of("*?[") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "what is removed below '", folder,
          "' can't be kept: name the folder in which the job alone has its files, without wildcards"));
    }
  }
  if (policy->overhead_budget() == 0) policy->set_overhead_budget(0.01);
  if (policy->keep_images() == 0) policy->set_keep_images(3);
  if (policy->backoff_seconds() == 0) policy->set_backoff_seconds(1);
  if (policy->backoff_limit_seconds() == 0) policy->set_backoff_limit_seconds(300);
  if (policy->retry_seconds() == 0) policy->set_retry_seconds(600);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
