// How a supervised job is started: its name, its log, and what there is to know of it.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/image_reference.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/copy_command.h"
#include "daemon/hindrance.h"
#include "daemon/image_lookup.h"
#include "daemon/job_log.h"
#include "daemon/job_mark.h"
#include "daemon/job_start.h"
#include "daemon/node.h"
#include "daemon/process_settings.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/supervised_record.h"
#include "daemon/supervisor.h"
#include "rekindle/v1/image_layout.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

// Its job may live: the record is all that is known of it, and not to be overwritten.
absl::Status NameOfUnreadable(const std::string& name, const absl::Status& why) {
  const std::string text = absl::StrCat(
      "the name '", name, "' is that of a supervised job whose record can't be used: ", why.message(),
      "; choose another --name");
  if (absl::IsDataLoss(why))
    return absl::AlreadyExistsError(absl::StrCat(text, ", or, once its job has ended, remove that file"));
  if (absl::IsFailedPrecondition(why)) return absl::AlreadyExistsError(text);
  // Another name would meet the same.
  return Annotate(why, absl::StrCat("reading whether a supervised job has the name '", name, "'"));
}

// What there is to know of a job that goes on from an image, which becomes what it can go on from.
absl::StatusOr<JobStart> PlanFromImage(Node& node, const Call& call, const v1::RunRequest& request,
                                       v1::SupervisedJobRecord* record) {
  if (request.argv_size() != 0) {
    return absl::InvalidArgumentError(
        "a job that goes on from an image has its command: give one of the two");
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(const store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.from_image(), "restore"));
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<store::ImageReader> image, store->OpenImage(info.digest));
  RK_ASSIGN_OR_RETURN(const v1::JobManifest manifest, restore::ReadJobManifest(*image));
  JobStart start;
  if (std::string newer = WarningOfNewer(node, *store, call.caller, request.from_image(), info);
      !newer.empty())
    start.warnings.push_back(std::move(newer));
  start.record.command = manifest.command();
  start.launch.argv = {manifest.command()};
  start.launch.working_directory = manifest.working_directory();
  start.launch.log = request.log().empty() ? manifest.log() : request.log();
  start.log_offset = FileSize(start.launch.log);
  v1::RestartPoint* point = record->add_points();
  point->set_image(info.reference);
  point->set_digest(info.digest);
  point->set_taken_unix_ns(manifest.captured_unix_ns() != 0 ? manifest.captured_unix_ns()
                                                            : info.created_unix_ns);
  GoOnFromStart(info, record, point);
  record->set_had_points(true);
  if (record->name().empty()) record->set_name(manifest.job_name());
  const std::string& given = request.supervision().image_name();
  const std::string name = given.empty() ? ImageNameOf(record->name()) : given;
  RK_ASSIGN_OR_RETURN(const std::vector<store::ImageInfo> known,
                      store->List([&](const store::ImageInfo& one) {
                        return one.owner == call.caller.uid && NameOfReference(one.reference) == name;
                      }));
  NoteOtherWays(info, known, record);
  record->set_mark(MarkOfImage(info.labels));
  record->set_uid(call.caller.uid);
  point->set_ours(MayRemoveOfEarlierStart(info, *record));
  return start;
}

void WarnOfFiles(const v1::JobRestarted& restarted, v1::JobStarted* started) {
  int changed = 0;
  for (const v1::FileRollback& file : restarted.files()) {
    if (file.action() == v1::FileRollback::LEFT) {
      started->add_warnings(absl::StrCat(file.path(), " could not be put back: ", file.why()));
    } else if (file.action() != v1::FileRollback::UNCHANGED && file.action() != v1::FileRollback::IGNORED) {
      ++changed;
    }
  }
  if (changed == 0) return;
  started->add_warnings(
      absl::StrCat(changed, changed == 1 ? " file is" : " files are", " again as when the image was taken"));
}

// What whoever has a job begin with its command should know: most who do that once more want it to go on.
void WarnOfBeginning(Node& node, const Call& call, const v1::RunRequest& request,
                     const v1::SupervisedJobRecord& record, std::vector<std::string>* warnings) {
  const v1::Supervision& policy = record.policy();
  if (policy.hang_seconds() > 0 && policy.restarts() > 0 && !policy.every_auto() &&
      policy.every_seconds() == 0) {
    warnings->push_back(
        "no images of it are taken by interval: when it hangs or dies it begins anew, over what it has "
        "written, unless somebody has taken one. With --every it goes on from the last");
  }
  const std::string images = policy.image_name().empty() ? ImageNameOf(record.name()) : policy.image_name();
  const auto store = node.OpenStore(Node::Access::kRead);
  if (!store.ok()) return;
  const absl::StatusOr<store::ImageInfo> newest = FindImageFor(node, **store, call.caller, images, "restore");
  if (!newest.ok() || newest->owner != call.caller.uid) return;
  // A name that was made of the command is that of many.
  const auto command = newest->labels.find(v1::kCommandLabel);
  if (request.name().empty() &&
      (command == newest->labels.end() || command->second != absl::StrJoin(record.argv(), " ")))
    return;
  warnings->push_back(absl::StrCat("there are images of an earlier job of this name, the newest ",
                                   newest->reference, ", and this one begins anew. `rekindle run --from ",
                                   newest->reference,
                                   " …` goes on from it, and with --resume a job does so "
                                   "wherever there is one"));
}

// When the first image is taken it would be too late: the job would run without any.
absl::Status CheckNameOfImages(const v1::RunRequest& request) {
  const std::string& given = request.supervision().image_name();
  const std::string& name = given.empty() ? request.name() : given;
  if (name.empty()) return absl::OkStatus();
  if (const absl::StatusOr<std::string> reference = store::NormalizeReference(absl::StrCat(name, ":x"));
      reference.ok()) {
    return CheckNoNameOfFunctions(*reference);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "images can't be called '", name,
      "': their names are small letters and digits, joined by single '.', '_', '-' or '/'. Add --image-name ",
      ImageNameOf(name), given.empty() ? ", or give another --name" : ""));
}

}  // namespace

absl::StatusOr<SupervisedHold> Supervisor::Claim(const std::string& name) {
  const std::shared_ptr<SupervisedJob> before = Get(name);
  if (before != nullptr) before->ForgetEnded();
  RK_ASSIGN_OR_RETURN(SupervisedHold hold, SupervisedHold::Take(directory(), name));
  absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory(), name);
  if (absl::IsNotFound(record.status())) return hold;
  if (!record.ok()) return NameOfUnreadable(name, record.status());
  if (record->ended()) return hold;
  if (before != nullptr && before->submitted_unix_ns() == record->submitted_unix_ns()) return hold;
  if (absl::Status foreign = CheckIsOfThisMachine(directory(), *record); !foreign.ok())
    return absl::AlreadyExistsError(absl::StrCat(foreign.message(), "; or choose another --name"));
  return absl::AlreadyExistsError(absl::StrCat("a supervised job named '", name,
                                               "' has not ended, and whoever supervised it has: "
                                               "rekindled takes it over when it is started, 'rekindle stop ",
                                               name, "' ends it; or choose another --name"));
}

absl::StatusOr<SupervisedHold> Supervisor::TakeName(const Caller& caller, const std::string& name,
                                                    std::shared_ptr<void>* reservation) {
  reservation->reset();
  RK_RETURN_IF_ERROR(CheckNameIsFreeFor(caller, name));
  RK_RETURN_IF_ERROR(node_.jobs().CheckNameIsFree(name));
  RK_ASSIGN_OR_RETURN(*reservation, starting_.TakeName(name));
  return Claim(name);
}

absl::Status Supervisor::TryCopyTo(const Call& call, const v1::RunRequest& request) const {
  if (!request.supervision().has_copy_to()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Annotate(CheckCopyTo(request.supervision().copy_to()), "--copy-to"));
  v1::SupervisedJobRecord job;
  *job.mutable_policy() = request.supervision();
  SetOwner(call.caller, &job);
  *job.mutable_environment() = request.environment();
  std::string unknown;  // the job's start tells
  RK_ASSIGN_OR_RETURN(const std::optional<ProcessSettings> settings, SettingsOfCaller(call.caller, &unknown));
  if (settings) *job.mutable_settings() = ToProto(*settings);
  // What it will be called, as far as that is known: at most places one is as good as another.
  std::string images = request.supervision().image_name();
  if (images.empty() && !request.from_image().empty())
    images = request.from_image().substr(0, request.from_image().find_first_of(":@"));
  if (images.empty()) {
    images = ImageNameOf(request.name().empty() ? JobNameFromCommand(absl::StrJoin(request.argv(), " "))
                                                : request.name());
  }
  return TryCopyPlace(node_.options(), CopyPlanOf(job, images), call.cancelled);
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervisor::Run(const Call& call,
                                                               const v1::RunRequest& request,
                                                               v1::JobStarted* started) {
  bool of_image = false;
  absl::StatusOr<std::shared_ptr<SupervisedJob>> job = RunFrom(call, request, started, &of_image);
  std::string image = request.from_image(), passed_over;
  std::vector<std::string> warnings;
  for (const std::string& older : request.older_images()) {
    if (job.ok() || !of_image || call.IsCancelled()) break;
    const std::string why = absl::StrCat(image, ": ", job.status().message());
    Log(LogLevel::kWarning, absl::StrCat("job '", request.name(), "' can't go on from ", why));
    warnings.push_back(absl::StrCat("the job could not be brought back from ", why));
    absl::StrAppend(&passed_over, passed_over.empty() ? "" : "; ", why);
    v1::RunRequest next = request;
    next.set_from_image(image = older);
    started->Clear();
    job = RunFrom(call, next, started, &of_image);
  }
  if (passed_over.empty()) return job;
  if (!job.ok()) {
    return WithMessage(job.status(),
                       absl::StrCat("it can't be brought back from any of its images that were tried: ",
                                    passed_over, "; ", image, ": ", job.status().message()));
  }
  warnings.back() += absl::StrCat("; it goes on from ", image);
  started->mutable_warnings()->Add(warnings.begin(), warnings.end());
  return job;
}

absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervisor::RunFrom(const Call& call,
                                                                   const v1::RunRequest& request,
                                                                   v1::JobStarted* started, bool* of_image) {
  Stopwatch stopwatch;
  *of_image = false;
  // The store has to be there before something is put into its folder.
  RK_RETURN_IF_ERROR(node_.OpenStore(Node::Access::kCreate).status());
  if (node_.options().daemon) {
    RK_RETURN_IF_ERROR(LockJobs());
  } else {
    RK_RETURN_IF_ERROR(MakeSupervisedDirectory(directory()));
  }
  v1::SupervisedJobRecord record;
  *record.mutable_policy() = request.supervision();
  RK_RETURN_IF_ERROR(CompletePolicy(record.mutable_policy()));
  if (request.hold()) {
    return absl::InvalidArgumentError(
        "a job that the hook holds makes no progress to supervise: leave --hold out");
  }
  RK_RETURN_IF_ERROR(CheckNameOfImages(request));
  RK_RETURN_IF_ERROR(TryCopyTo(call, request));
  if (record.policy().has_copy_to() && !request.from_image().empty())
    *record.mutable_copy_environment() = request.environment();
  record.set_name(request.name());
  absl::StatusOr<JobStart> plan = request.from_image().empty() ? PlanJobStart(node_, call, request)
                                                               : PlanFromImage(node_, call, request, &record);
  *of_image = MayFitOtherImage(plan.status());
  RK_ASSIGN_OR_RETURN(JobStart start, std::move(plan));
  const std::string stem = record.name().empty() ? JobNameFromCommand(start.record.command) : record.name();
  record.set_name(stem);
  record.set_uid(call.caller.uid);
  std::shared_ptr<void> reservation, images_reservation;
  absl::StatusOr<SupervisedHold> hold = absl::UnknownError("not taken");
  const auto take_names = [&]() -> absl::Status {
    hold = TakeName(call.caller, record.name(), &reservation);
    RK_RETURN_IF_ERROR(hold.status());
    RK_ASSIGN_OR_RETURN(images_reservation, starting_.TakeImagesName(NameOfImages(record), record.uid()));
    return CheckImagesNameIsFree(directory(), record);
  };
  absl::Status taken = take_names();
  for (int number = 2; absl::IsAlreadyExists(taken) && request.name().empty(); ++number) {
    // Another number would be the same name of images.
    if (hold.ok() && !record.policy().image_name().empty()) break;
    record.set_name(absl::StrCat(stem, "-", number));
    taken = take_names();
  }
  RK_RETURN_IF_ERROR(taken);
  // It is another job's then, which runs.
  if (record.name() != stem) {
    for (v1::RestartPoint& point : *record.mutable_points()) point.set_ours(false);
  }
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<void> log_reservation,
                      ReserveLog(request.from_image().empty() ? request.log() : start.launch.log,
                                 /*supervised=*/true));
  RK_RETURN_IF_ERROR(CheckLogIsOwn(node_, call.caller,
                                   request.from_image().empty() ? request.log() : start.launch.log,
                                   /*supervised=*/true, record.name(), &start.warnings));
  SetOwner(call.caller, &record);
  for (const std::string& word : start.launch.argv) record.add_argv(word);
  for (const std::string& variable : start.launch.environment) record.add_environment(variable);
  record.set_working_directory(start.launch.working_directory);
  record.set_log(start.launch.log);
  record.set_log_offset(start.log_offset);
  record.set_standard_input(start.launch.standard_input);
  if (start.launch.settings) *record.mutable_settings() = ToProto(*start.launch.settings);
  record.set_submitted_unix_ns(UnixNanos());
  if (record.mark().empty()) record.set_mark(NewJobMark(record.name()));
  const std::string name = record.name();
  v1::JobRestarted restarted;
  std::vector<std::string> warnings = std::move(start.warnings);
  if (request.from_image().empty()) WarnOfBeginning(node_, call, request, record, &warnings);
  absl::StatusOr<std::shared_ptr<SupervisedJob>> launched =
      request.from_image().empty()
          ? SupervisedJob::Launch(node_, std::move(record), *std::move(hold),
                                  std::move(start.launch.log_file), &warnings)
          : SupervisedJob::LaunchFromImage(node_, std::move(record), *std::move(hold), request.log(),
                                           &restarted);
  // Where it is the machine that another one may fit, nobody knows how far back that is, and the image is not
  // lost: it is for who starts the job to choose.
  *of_image = MayFitOtherImage(launched.status());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<SupervisedJob> job, std::move(launched));
  start.new_log.Keep();
  ToProto(warnings, started->mutable_warnings());
  WarnOfFiles(restarted, started);
  *started->mutable_job() = job->Describe();
  started->set_log_offset(start.log_offset);
  started->set_seconds(stopwatch.seconds());
  std::shared_ptr<SupervisedJob> before;  // ended without the lock
  {
    absl::MutexLock lock(&mutex_);
    before = std::exchange(jobs_[name], job);
  }
  if (request.supervision().has_copy_to()) BeginCopying();
  return job;
}

}  // namespace rekindle::daemon
