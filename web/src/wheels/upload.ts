import { refusal } from "../api/client";
import { keyHeaders } from "../auth/session";
import { language } from "../i18n";

export interface WheelName {
  package: string;
  version: string;
}

/** `my_flows-1.0-py3-none-any.whl`, as people call it. */
export function readName(file: string): WheelName {
  const [name = file, version = ""] = file.replace(/\.whl$/, "").split("-");
  return { package: name.replaceAll("_", "-"), version };
}

/** Registers a wheel. fetch cannot tell how far an upload is, so this is the older way. */
export function upload(file: File, tags: string, onProgress: (fraction: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("POST", "/wheels");
    for (const [name, value] of Object.entries({ ...keyHeaders(), "Accept-Language": language.value })) {
      sending.setRequestHeader(name, value);
    }
    sending.upload.onprogress = (event) => onProgress(event.total ? event.loaded / event.total : 0);
    sending.onerror = () => reject(new TypeError("network"));
    sending.onload = () => (sending.status < 300 ? resolve() : reject(refusal(sending.status, sending.responseText)));
    const form = new FormData();
    form.append("wheel", file);
    form.append("tags", tags);
    sending.send(form);
  });
}
