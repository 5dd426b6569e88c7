#include "cli/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "cli/exit_code.h"

namespace rekindle::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json MessageToJson(const Message& message);

// One value of a field; `index` < 0: of a field that is not repeated.
Json ValueToJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* reflection = message.GetReflection();
#define RK_VALUE(Type) \
  (index < 0 ? reflection->Get##Type(message, field) : reflection->GetRepeated##Type(message, field, index))
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return RK_VALUE(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return RK_VALUE(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return RK_VALUE(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return RK_VALUE(UInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return RK_VALUE(Double);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return RK_VALUE(Float);
    case FieldDescriptor::CPPTYPE_BOOL:
      return RK_VALUE(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::AsciiStrToLower(RK_VALUE(Enum)->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return RK_VALUE(String);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(RK_VALUE(Message));
  }
#undef RK_VALUE
  return nullptr;
}

Json FieldToJson(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  if (field->is_map()) {
    Json map = Json::object();
    const FieldDescriptor* value = field->message_type()->map_value();
    const FieldDescriptor* key = field->message_type()->map_key();
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      const Message& entry = reflection->GetRepeatedMessage(message, field, i);
      map[entry.GetReflection()->GetString(entry, key)] = ValueToJson(entry, value, -1);
    }
    return map;
  }
  if (field->is_repeated()) {
    Json list = Json::array();
    for (int i = 0; i < reflection->FieldSize(message, field); ++i)
      list.push_back(ValueToJson(message, field, i));
    return list;
  }
  if (field->has_presence() && !reflection->HasField(message, field)) return nullptr;
  return ValueToJson(message, field, -1);
}

Json MessageToJson(const Message& message) {
  Json object = Json::object();
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    // Of the alternatives of a stream's event only the one that it is.
    if (field->real_containing_oneof() && !message.GetReflection()->HasField(message, field)) continue;
    object[field->name()] = FieldToJson(message, field);
  }
  return object;
}

std::string OneLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string ToJson(const Message& message) { return OneLine(MessageToJson(message)); }

std::string ErrorToJson(const absl::Status& status, ExitCode code) {
  Json error = Json::object();
  error["code"] = absl::StatusCodeToString(status.code());
  error["message"] = std::string(status.message());
  error["exit_code"] = static_cast<int>(code);
  return OneLine(Json{{"error", error}});
}

}  // namespace rekindle::cli
